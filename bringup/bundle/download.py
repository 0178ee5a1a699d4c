"""A file fetched by its address into its place: whole and proven, or as a part that the next try goes on with."""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import BringupError, StepError
from bringup.base.text import size as size_text

TRIES = 4
_CHUNK = 1 << 18
_STALL = 60.0
"""Seconds without a byte after which a connection counts as cut."""


@dataclass(frozen=True)
class Wanted:
    """A file to fetch. `size` is None where the index does not say it. `url` may carry no password."""

    name: str
    url: str
    sha256: str
    size: int | None = None


def fetch(wanted: Wanted, target: Path, settings: Mapping[str, str], *, told: Callable[[int], None] | None = None
          ) -> None:
    """Bring a file to `target` unless it is there. What a cut connection leaves, `.part`, is gone on with.

    `settings` are those of `package_settings`: certificates, proxies and the passwords of its indexes. Raises
    StepError when the file cannot be had or is another one.
    """
    if target.is_file() and sha256_of(target) == wanted.sha256:
        return
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    trouble: BringupError | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(min(2.0 ** attempt / 2, 5.0))
        try:
            _go_on(wanted, part, settings, told)
        except urllib.error.HTTPError as error:
            if error.code in (416,):
                part.unlink(missing_ok=True)
            trouble = _failed(wanted, f"{error.code} {error.reason}")
            if error.code in (401, 403, 404, 410):
                raise trouble from None
            continue
        except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError, urllib.error.URLError) as error:
            trouble = _failed(wanted, _said(error), part)
            continue
        except OSError as error:
            raise _unwritable(part, error) from None
        trouble = _proved(wanted, part, target)
        if trouble is None:
            return
    assert trouble is not None
    raise trouble


def _go_on(wanted: Wanted, part: Path, settings: Mapping[str, str], told: Callable[[int], None] | None) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if wanted.size is not None and have == wanted.size:
        return
    request = urllib.request.Request(wanted.url, headers={"User-Agent": "bringup", "Accept-Encoding": "identity"})
    password = _authorization(wanted.url, settings)
    if password:
        request.add_unredirected_header("Authorization", password)
    if have:
        request.add_header("Range", f"bytes={have}-")
    with _opener(settings).open(request, timeout=_STALL) as answer:
        if have and getattr(answer, "status", 200) != 206:
            have = 0  # a server that knows no ranges sends all of it again
        length = answer.headers.get("Content-Length")
        whole = have + int(length) if length else wanted.size
        with part.open("ab" if have else "wb") as file:
            while data := answer.read(_CHUNK):
                file.write(data)
                have += len(data)
                if told is not None:
                    told(have)
    if whole is not None and have < whole:  # http.client says nothing of a connection that ends early
        raise http.client.IncompleteRead(b"", whole - have)


def _proved(wanted: Wanted, part: Path, target: Path) -> StepError | None:
    found = sha256_of(part)
    if found == wanted.sha256:
        os.replace(part, target)
        return None
    part.unlink()
    return StepError(f"{wanted.name} is not the file that the lock names", expected=f"sha256 {wanted.sha256}",
                     found=f"sha256 {found}",
                     next="the index serves another file: check the index, or lock again with invoke env.lock")


def _failed(wanted: Wanted, said: str, part: Path | None = None) -> StepError:
    kept = part.stat().st_size if part is not None and part.is_file() else 0
    return StepError(f"{wanted.name} cannot be fetched", where=_shown(wanted.url), found=said,
                     details=[f"{size_text(kept)} of it are kept"] if kept else [],
                     next="run again: what is there is not fetched again")


def _unwritable(part: Path, error: OSError) -> StepError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StepError("the disk is full" if full else f"cannot be fetched: {error.strerror or error}",
                     where=str(part.parent), next="free space and run again: what is there is not fetched again"
                     if full else None)


def _said(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut in the middle"
    return str(reason or error) or type(error).__name__


def _opener(settings: Mapping[str, str]) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    if settings.get("SSL_CERT_FILE"):
        context.load_verify_locations(settings["SSL_CERT_FILE"])
    proxies = {name.lower().removesuffix("_proxy"): value for name, value in settings.items()
               if name.lower().endswith("_proxy")}
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context),
                                       urllib.request.ProxyHandler(proxies or None))


def _authorization(url: str, settings: Mapping[str, str]) -> str | None:
    """The password of the index that serves the host of `url`: uv leaves it out of addresses that it writes."""
    host = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        for index in settings.get(name, "").split():
            parts = urllib.parse.urlsplit(index.partition("=")[2] if re.match(r"[\w-]+=", index) else index)
            if parts.username and parts.netloc.rpartition("@")[2] == host:
                pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
                return "Basic " + base64.b64encode(pair.encode()).decode()
    return None


def _shown(url: str) -> str:
    """An address without what may be a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
