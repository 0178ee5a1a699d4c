"""What a deployment says of its weights: where they lie on the hosts, of which revision, and where they come from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.secrets import SCRUBBER
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, value_origin

HUB = "https://huggingface.co"
"""The hub where neither the deployment nor HF_ENDPOINT names one."""

KEYS = ("repo", "revision", "endpoint", "endpoints", "path", "token", "proxy", "certificates", "rate", "fan_out",
        "streams", "fetch_on")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_RATE = re.compile(r"([\d.]+)\s*(|[kMGT]?i?B|[kMGT]?bit)(?:/s|ps)?")
_UNITS = {"": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "kiB": 2.0 ** 10, "MiB": 2.0 ** 20,
          "GiB": 2.0 ** 30, "TiB": 2.0 ** 40, "bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9}


@dataclass(frozen=True)
class Weights:
    """`weights:` of a deployment, read strictly.

    From a hub: `repo` at `revision` (a commit) from the first of `endpoints` that answers. From a folder of the host
    `fetch_on`: `path`. `rate` is bytes a second for each host, None without a limit; `fan_out` is how many hosts each
    host gives to; `streams` files at a time.
    """

    repo: str | None = None
    revision: str | None = None
    endpoints: tuple[str, ...] = ()
    path: str | None = None
    token: str | None = None
    proxy: str | None = None
    certificates: str | None = None
    rate: int | None = None
    fan_out: int = 2
    streams: int = 4
    fetch_on: str | None = None

    @property
    def fetched(self) -> bool:
        """Whether they may be fetched: a repository at a commit, or a folder."""
        return bool(self.repo and self.revision) or bool(self.path)

    def upstream(self) -> dict[str, Any]:
        """Where the fetching host gets them, as `bringup.run.spreading.Spread` takes it."""
        if self.path:
            return {"kind": "folder", "path": self.path}
        out: dict[str, Any] = {"kind": "hub", "endpoints": list(self.endpoints), "repo": self.repo,
                               "revision": self.revision}
        return out | {key: value for key, value in (("token", self.token), ("proxy", self.proxy),
                                                    ("certificates", self.certificates)) if value}

    def shown(self) -> str:
        """Where they come from, for people."""
        if self.path:
            return self.path
        return f"{self.repo} at {(self.revision or '')[:12]} from {self.endpoints[0]}"


def model_path_of(variables: Mapping[str, Any]) -> str | None:
    """The folder of the model on a host, None where its deployment names none."""
    deployment = variables.get("deployment")
    path = deployment.get("model_path") if isinstance(deployment, Mapping) else None
    return str(path).rstrip("/") if path and str(path).startswith("/") else None


def read_weights(variables: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Weights | None:
    """`weights` of a host's deployment; None where it says nothing of them. Raises InputError with file and line."""
    deployment = variables.get("deployment")
    given = deployment.get("weights") if isinstance(deployment, Mapping) else None
    if given is None:
        return None
    return parse_weights(given, value_origin(deployment, "weights"), os.environ if environ is None else environ)


def parse_weights(given: Any, where: Origin | None, environ: Mapping[str, str], written: Any = None) -> Weights:
    """The value of `weights`, read strictly. HF_ENDPOINT of `environ` counts where no endpoint is named.

    `written` is the value before templating, for its places, which rendering loses.
    """
    if not isinstance(given, Mapping):
        raise InputError("`weights` takes a mapping", where=where, found=str(given),
                         expected="weights: {repo: zai-org/GLM-5.1, revision: 40 hex digits}")
    written = written if isinstance(written, Mapping) else given
    where = getattr(written, "origin", None) or where
    for key in given:
        if key not in KEYS:
            near = nearest(str(key), KEYS)
            raise InputError(f"`weights` knows no key `{key}`", where=key_origin(written, key) or where,
                             expected=", ".join(KEYS), next=f"nearest: {near}" if near else None)

    def at(key: str) -> Origin | None:
        return value_origin(written, key) or where

    texts = {key: _text(given, key, at(key)) for key in ("repo", "revision", "path", "token", "proxy", "certificates",
                                                         "fetch_on")}
    if texts["token"]:
        SCRUBBER.add(texts["token"])
    endpoints = _endpoints(given, at) or (environ.get("HF_ENDPOINT") or HUB,)
    _check_source(texts, endpoints, where, at)
    return Weights(
        **texts, endpoints=tuple(one.rstrip("/") for one in endpoints), rate=_rate(given.get("rate"), at("rate")),
        fan_out=_number(given, "fan_out", 2, at("fan_out")), streams=_number(given, "streams", 4, at("streams")))


def _check_source(texts: Mapping[str, str | None], endpoints: Sequence[str], where: Origin | None, at: Any) -> None:
    if texts["repo"] and texts["path"]:
        raise InputError("`weights` names a repo and a path", where=at("path"), next="leave one of them out")
    if texts["repo"] and not re.fullmatch(r"[\w.-]+/[\w.-]+", texts["repo"]):
        raise InputError("`repo` is owner/name", where=at("repo"), found=texts["repo"])
    if texts["path"] and not texts["path"].startswith("/"):
        raise InputError("`path` is a folder on the host that fetches", where=at("path"), found=texts["path"],
                         expected="a path from / on")
    revision = texts["revision"]
    if revision and not _COMMIT.fullmatch(revision):
        raise InputError("`revision` is no commit: a branch or a tag may be another one tomorrow", where=at("revision"),
                         expected="40 hex digits", found=revision,
                         next=f"read `sha` in {endpoints[0]}/api/models/{texts['repo'] or 'REPO'}/revision/{revision}")
    if texts["repo"] and not revision:
        raise InputError("`weights` names a repo without a revision", where=at("repo"),
                         expected="revision: 40 hex digits",
                         next=f"read `sha` in {endpoints[0]}/api/models/{texts['repo']}/revision/main")


def _endpoints(given: Mapping[str, Any], at: Any) -> tuple[str, ...]:
    several = given.get("endpoints")
    if several is not None and (isinstance(several, str) or not isinstance(several, Sequence) or not several):
        raise InputError("`endpoints` takes a list of addresses", where=at("endpoints"), found=str(several))
    one = _text(given, "endpoint", at("endpoint"))
    found = tuple(str(item) for item in several or ()) + ((one,) if one else ())
    for item in found:
        if not re.match(r"https?://[^/]", item):
            raise InputError("an endpoint is an address of a hub or a mirror", where=at("endpoint"), found=item,
                             expected="https://HOST")
        for password in re.findall(r"//[^/@\s:]*:([^/@\s]+)@", item):
            SCRUBBER.add(password)
    return found


def _text(given: Mapping[str, Any], key: str, where: Origin | None) -> str | None:
    value = given.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, (Mapping, list, tuple, bool)):
        raise InputError(f"`{key}` takes a text", where=where, found=str(value))
    return str(value)


def _number(given: Mapping[str, Any], key: str, default: int, where: Origin | None) -> int:
    value = given.get(key)
    if value is None or value == "":
        return default
    if isinstance(value, bool) or not str(value).isdecimal() or not 1 <= int(str(value)) <= 64:
        raise InputError(f"`{key}` takes a whole number from 1 to 64", where=where, found=str(value))
    return int(str(value))


def _rate(value: Any, where: Origin | None) -> int | None:
    """Bytes a second. Raises InputError."""
    if value is None or value == "":
        return None
    match = _RATE.fullmatch(str(value).strip())
    found = float(match.group(1)) * _UNITS[match.group(2)] if match and match.group(1).count(".") < 2 and (
        match.group(1) != ".") else 0.0
    if found < 1000:
        raise InputError("`rate` is how much a host moves each second", where=where, found=str(value),
                         expected="such as 500 MB/s, 10 Gbit/s")
    return int(found)
