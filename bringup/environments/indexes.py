"""The site's package index, certificates and proxies, as an explicit list that travels to the hosts."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER

PASSED = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INSECURE_HOST",
    "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_HTTP_TIMEOUT", "UV_OFFLINE", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)
"""Variables of the controller that uv on a host gets; no other one does."""


def package_settings(given: Any = None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What uv on a host gets: the controller's variables, pip's read as uv's, the inventory's `bringup_packages` last
    (an empty value takes a variable out).

    Without an index in the environment or in uv's own configuration pip's `index-url` and `cert` count: a site that
    set only pip up has one index, not two. Passwords in addresses are learnt by the scrubber.
    Raises InputError when `bringup_packages` is no mapping of such names.
    """
    env = os.environ if environ is None else environ
    out = {name: env[name] for name in PASSED if env.get(name)}
    pip = {**_pip_configuration(env), **{key: env[name] for key, name in (
        ("index-url", "PIP_INDEX_URL"), ("extra-index-url", "PIP_EXTRA_INDEX_URL"), ("cert", "PIP_CERT"))
        if env.get(name)}}
    if not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(out):
        index = _uv_configuration(env) or pip.get("index-url")
        if index:
            out["UV_DEFAULT_INDEX"] = index
    if env.get("PIP_EXTRA_INDEX_URL") and not {"UV_INDEX", "UV_EXTRA_INDEX_URL"} & set(out):
        out["UV_INDEX"] = pip["extra-index-url"]
    if pip.get("cert") and "SSL_CERT_FILE" not in out:
        out["SSL_CERT_FILE"] = pip["cert"]
    if given is not None:
        if not isinstance(given, Mapping):
            raise InputError("bringup_packages is no mapping", expected="UV_DEFAULT_INDEX: address", found=str(given))
        for name, value in given.items():
            if name not in PASSED:
                raise InputError(f"bringup_packages holds `{name}`", expected=", ".join(PASSED[:16]))
            out[str(name)] = str(value)
            if value in ("", None):
                del out[str(name)]
    for value in out.values():
        for password in re.findall(r"//[^/@\s:]*:([^/@\s]+)@", value):
            SCRUBBER.add(password)
    return out


def _pip_configuration(env: Mapping[str, str]) -> dict[str, str]:
    """[global] of pip's configuration files, later ones last, as pip reads them."""
    home = Path(os.path.expanduser("~"))
    base = Path(env["XDG_CONFIG_HOME"]) if env.get("XDG_CONFIG_HOME") else home / ".config"
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", base / "pip" / "pip.conf",
             Path(sys.prefix) / "pip.conf"]
    files[:0] = [Path(part) / "pip" / "pip.conf" for part in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if part]
    if env.get("PIP_CONFIG_FILE"):
        files.append(Path(env["PIP_CONFIG_FILE"]))
    out: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text())
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        for key in ("index-url", "cert"):
            if parser.has_option("global", key):
                out[key] = parser.get("global", key).strip()
    return out


def _uv_configuration(env: Mapping[str, str]) -> str | None:
    """The default index of the user's or the system's uv.toml, or None."""
    base = Path(env["XDG_CONFIG_HOME"]) if env.get("XDG_CONFIG_HOME") else Path(os.path.expanduser("~")) / ".config"
    files = [base / "uv" / "uv.toml", Path("/etc/xdg/uv/uv.toml"), Path("/etc/uv/uv.toml")]
    if env.get("UV_CONFIG_FILE"):
        files.insert(0, Path(env["UV_CONFIG_FILE"]))
    for file in files:
        try:
            text = file.read_text()
        except OSError:
            continue
        found = re.search(r'^\s*index-url\s*=\s*"([^"]+)"', text, re.M)
        if found:
            return found[1]
        for block in re.split(r"^\s*\[\[index\]\]\s*$", text, flags=re.M)[1:]:
            block = re.split(r"^\s*\[", block, flags=re.M)[0]
            url = re.search(r'^\s*url\s*=\s*"([^"]+)"', block, re.M)
            if url and re.search(r"^\s*default\s*=\s*true", block, re.M):
                return url[1]
    return None
