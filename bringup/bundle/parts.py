"""A file cut into parts for carrying, and read again as one.

`glm51.tar.zst` in parts is `glm51.tar.zst.001` and on, with `glm51.tar.zst.parts` beside them: a line per part as
sha256sum writes it, so that `sha256sum -c` checks a copy too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bringup.base.errors import InputError

_PART = re.compile(r"^(.+)\.(\d{3,})$")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Part:
    """One part; `sha256` is None where the list of parts did not come along."""

    path: Path
    sha256: str | None


class PartsWriter(io.RawIOBase):
    """Writes `PATH.001` and on, each of at most `size` bytes, under hidden names; `finish` gives them their names."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.digests: list[str] = []
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self._room = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            if self._file is None:
                self._file = self._hidden(len(self.digests) + 1).open("wb")
                self._hash, self._room = hashlib.sha256(), self.size
            piece = view[done:done + self._room]
            self._file.write(piece)
            self._hash.update(piece)
            self._room -= len(piece)
            done += len(piece)
            if self._room == 0:
                self._end_part()
        return done

    def _hidden(self, number: int) -> Path:
        return self.path.with_name(f".{self.path.name}.{number:03d}.{os.getpid()}")

    def _end_part(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self.digests.append(self._hash.hexdigest())

    def finish(self) -> list[Path]:
        """Give the parts and their list their names; the list comes last. Returns all of them.

        Parts that an earlier list names and this one does not are removed: they would be joined behind the last.
        """
        self._end_part()
        with contextlib.suppress(InputError, OSError):
            for part in _listed(list_of(self.path)):
                found = _PART.match(part.path.name)
                if found and found[1] == self.path.name and int(found[2]) > len(self.digests):
                    part.path.unlink()
        out = []
        for number in range(1, len(self.digests) + 1):
            target = self.path.with_name(f"{self.path.name}.{number:03d}")
            os.replace(self._hidden(number), target)
            out.append(target)
        listed = list_of(self.path)
        hidden = self._hidden(0)
        hidden.write_text("".join(f"{digest}  {part.name}\n" for digest, part in zip(self.digests, out, strict=True)))
        os.replace(hidden, listed)
        return [*out, listed]

    def discard(self) -> None:
        """Remove what was written so far."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for number in range(len(self.digests) + 2):
            self._hidden(number).unlink(missing_ok=True)


def list_of(path: Path) -> Path:
    """The list of parts of a bundle."""
    return path.with_name(f"{path.name}.parts")


def parts_of(given: Path) -> list[Part] | None:
    """The parts behind a name: the bundle's own, its list's or any part's. None where it is one whole file.

    Raises InputError when there is nothing, or a part is missing.
    """
    if given.name.endswith(".parts"):
        stem = given.with_name(given.name.removesuffix(".parts"))
    else:
        found = _PART.match(given.name)
        stem = given.with_name(found[1]) if found else given
        if not found and given.is_file():
            return None
    listed = list_of(stem)
    if listed.is_file():
        return _listed(listed)
    out: list[Part] = []
    while (part := stem.with_name(f"{stem.name}.{len(out) + 1:03d}")).is_file():
        out.append(Part(part, None))
    later = sorted(path.name for path in _siblings(stem) if path not in {part.path for part in out})
    if later:
        raise missing_part(stem.with_name(f"{stem.name}.{len(out) + 1:03d}"), f"{later[0]} is there")
    if not out:
        raise InputError("there is no such bundle", where=str(given), expected="a file that `invoke bundle` made, or "
                         "the first of its parts")
    return out


def _siblings(stem: Path) -> Iterator[Path]:
    for path in stem.parent.glob(f"{_escaped(stem.name)}.*"):
        found = _PART.match(path.name)
        if found and found[1] == stem.name:
            yield path


def _escaped(name: str) -> str:
    return re.sub(r"([\[*?])", r"[\1]", name)


def _listed(listed: Path) -> list[Part]:
    out = []
    for number, line in enumerate(listed.read_text(errors="replace").splitlines(), 1):
        found = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/]+)", line)
        if not found:
            raise InputError("the list of parts is damaged", where=f"{listed}:{number}",
                             expected="digest and name, as sha256sum writes them", next="copy it again")
        out.append(Part(listed.with_name(found[2]), found[1]))
    if not out:
        raise InputError("the list of parts is empty", where=str(listed), next="copy it again")
    for part in out:
        if not part.path.is_file():
            raise missing_part(part.path, f"{listed.name} names {len(out)} parts")
    return out


def missing_part(path: Path, found: str) -> InputError:
    return InputError("a part of the bundle is missing", where=str(path), expected="all parts in one folder",
                      found=found, next="copy that part there, then run again: what is verified is kept")


class JoinedReader(io.RawIOBase):
    """The parts as one stream; each is checked against its digest when its end is read. Raises InputError there."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self._index = -1
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while True:
            if self._file is None:
                if self._index + 1 >= len(self._parts):
                    return 0
                self._index += 1
                self._file = self._parts[self._index].path.open("rb")
                self._hash = hashlib.sha256()
            data = self._file.read(min(len(view), _CHUNK))
            if data:
                self._hash.update(data)
                view[:len(data)] = data
                return len(data)
            self._end_part()

    def _end_part(self) -> None:
        part = self._parts[self._index]
        if self._file is not None:
            self._file.close()
            self._file = None
        if part.sha256 is not None and self._hash.hexdigest() != part.sha256:
            raise damaged_part(part, self._hash.hexdigest())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def damaged_part(part: Part, found: str) -> InputError:
    return InputError("this part is damaged", where=str(part.path), expected=f"sha256 {(part.sha256 or '')[:16]}...",
                      found=f"sha256 {found[:16]}...", next="copy this part again, then run again")


def check_part(part: Part) -> InputError | None:
    """What is wrong with one part, by its digest; None when nothing is, or no digest is known."""
    digest = hashlib.sha256()
    with part.path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return None if part.sha256 in (None, digest.hexdigest()) else damaged_part(part, digest.hexdigest())
