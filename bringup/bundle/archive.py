"""A bundle's bytes: a tar in one zstd frame, the manifest first, then each file in the manifest's order."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import zstandard

from bringup.base.errors import BringupError, InputError, StepError
from bringup.base.text import size as size_text
from bringup.bundle.manifest import NAME, Entry, Manifest, parse_manifest
from bringup.bundle.parts import JoinedReader, Part, PartsWriter, check_part, parts_of

LEVEL = 3
"""zstd's own default: wheels and interpreters are compressed already, images and sources gain most of it here."""
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 64 << 20

Told = Callable[[Entry, int], None]
"""Called as a file goes by: the entry, and how many of its bytes are done."""


def write_bundle(manifest: Manifest, sources: Mapping[str, Path], output: Path, *, split: int | None = None,
                 told: Told | None = None) -> list[Path]:
    """Write a bundle; `sources` maps an entry's path to the file here, `split` is bytes for each part.

    Nothing appears under the output's name before all of it is written; what an interrupt leaves is removed. Returns
    the files. Raises StepError when the disk is full, or a file is not what the manifest says.
    """
    raw = _Output(output, split)
    try:
        with zstandard.ZstdCompressor(level=LEVEL, threads=-1, write_checksum=True).stream_writer(
                cast(IO[bytes], raw.file), closefd=False) as packed, \
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            text = manifest.text().encode()
            archive.addfile(_member(NAME, len(text)), io.BytesIO(text))
            for entry in manifest.packed:
                with sources[entry.path].open("rb") as file:
                    counted = _Counted(file, entry, told)
                    archive.addfile(_member(entry.path, entry.size), cast(IO[bytes], counted))
                counted.check(sources[entry.path])
        return raw.finish()
    except OSError as error:
        raw.discard()
        raise _unwritable(output, error) from None
    except BaseException:
        raw.discard()
        raise


def _unwritable(output: Path, error: OSError) -> StepError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = None
        with contextlib.suppress(OSError):
            seen = os.statvfs(output.parent)
            free = f"{size_text(seen.f_bavail * seen.f_frsize)} free now"
        return StepError("the disk is full: the bundle was not finished", where=str(output), found=free,
                         next="free space, or write elsewhere with --output; what was fetched is kept")
    return StepError(f"the bundle cannot be written: {error.strerror or error}", where=str(error.filename or output),
                     next="what was fetched is kept: run again")


class _Output:
    """One hidden file that gets its name at the end, or parts."""

    def __init__(self, output: Path, split: int | None) -> None:
        self.output = output
        self._hidden = output.with_name(f".{output.name}.{os.getpid()}")
        self.file: PartsWriter | IO[bytes]
        try:
            self.file = PartsWriter(output, split) if split else self._hidden.open("wb")
        except OSError as error:
            raise _unwritable(output, error) from None

    def finish(self) -> list[Path]:
        if isinstance(self.file, PartsWriter):
            return self.file.finish()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self._hidden, self.output)
        return [self.output]

    def discard(self) -> None:
        if isinstance(self.file, PartsWriter):
            self.file.discard()
            return
        with contextlib.suppress(OSError):  # closing flushes, and the disk may be full
            self.file.close()
        self._hidden.unlink(missing_ok=True)


def _member(name: str, length: int) -> tarfile.TarInfo:
    """A member with nothing in it that differs between two makings of the same bundle."""
    member = tarfile.TarInfo(name)
    member.size = length
    member.mode = 0o755 if name.startswith("uv/") else 0o644
    return member


class _Counted(io.RawIOBase):
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes], entry: Entry, told: Told | None) -> None:
        self.file, self.entry, self.told = file, entry, told
        self.digest, self.done = hashlib.sha256(), 0

    def read(self, size: int | None = -1) -> bytes:
        data = self.file.read(-1 if size is None else size)
        self.digest.update(data)
        self.done += len(data)
        if self.told is not None and data:
            self.told(self.entry, self.done)
        return data

    def check(self, path: Path) -> None:
        if self.done != self.entry.size or self.digest.hexdigest() != self.entry.sha256:
            raise StepError("a file is not what it was when it was named: the bundle was not finished", where=str(path),
                            expected=f"sha256 {self.entry.sha256[:16]}...",
                            found=f"sha256 {self.digest.hexdigest()[:16]}...",
                            next="run again; when it stays, remove that file: it is fetched or packed anew")


class _Frame:
    """The content of one zstd frame. Raises ZstdError where it ends too early, or something stands behind it."""

    def __init__(self, raw: IO[bytes] | JoinedReader) -> None:
        self._raw = raw
        self._packed = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._ready:
            data = self._raw.read(1 << 16)
            if not data:
                if not self._packed.eof:
                    raise zstandard.ZstdError("the file ends too early")
                return b""
            if self._packed.eof:
                raise zstandard.ZstdError("something stands behind its end")
            self._ready = memoryview(self._packed.decompress(data))
            if self._packed.unused_data:
                raise zstandard.ZstdError("something stands behind its end")
        out, self._ready = self._ready[:size], self._ready[size:]  # views: a long run of zeros is not copied about
        return bytes(out)


class BundleReader:
    """A bundle, whole or in parts, read once from front to end. A context manager.

    Raises InputError: no such file, a part is missing or damaged, not a bundle.
    """

    def __init__(self, given: Path) -> None:
        self.given = given
        self.parts: list[Part] | None = parts_of(given)
        self.manifest: Manifest
        self._raw: IO[bytes] | JoinedReader

    def __enter__(self) -> BundleReader:
        self._raw = JoinedReader(self.parts) if self.parts else self.given.open("rb")
        self._stream = _Frame(self._raw)
        try:
            with self._explained("its first bytes"):
                self._archive = tarfile.open(fileobj=cast(Any, self._stream), mode="r|", bufsize=_CHUNK)
                first = self._archive.next()
                if first is None or first.name != NAME or first.size > _LARGEST_MANIFEST:
                    raise _no_bundle(self.given)
                file = self._archive.extractfile(first)
                text = file.read().decode("utf-8", "replace") if file else ""
            self.manifest = parse_manifest(text, f"{self.given.name} ({NAME})")
        except BaseException:
            self._raw.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._raw.close()

    def files(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Each packed file in turn with its content in pieces; its digest is checked when the last piece was taken.

        All pieces of a file must be taken before the next file is asked for. Raises InputError: a file is damaged,
        missing or not named by the manifest.
        """
        for entry in self.manifest.packed:
            with self._explained(entry.path):
                member = self._archive.next()
            if member is None or member.name != entry.path or not member.isreg() or member.size != entry.size:
                raise self._damaged(entry.path, "the archive ends before it" if member is None else
                                    f"{member.name} of {member.size} bytes in its place")
            yield entry, self._pieces(entry, member)
        with self._explained("its end"):
            extra = self._archive.next()
            if extra is not None:
                raise self._damaged(extra.name, "a file that the manifest does not name")
            while self._stream.read(_CHUNK):  # up to the frame's checksum and the last part's digest
                pass

    def _pieces(self, entry: Entry, member: tarfile.TarInfo) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with self._explained(entry.path):
            file = self._archive.extractfile(member)
            while data := (file.read(_CHUNK) if file else b""):
                digest.update(data)
                yield data
        if digest.hexdigest() != entry.sha256:
            raise self._damaged(entry.path, f"sha256 {digest.hexdigest()[:16]}..., not {entry.sha256[:16]}...")

    @contextlib.contextmanager
    def _explained(self, at: str) -> Iterator[None]:
        try:
            yield
        except zstandard.ZstdError as error:
            if at == "its first bytes" and not self._begins_as_zstd():
                raise _no_bundle(self.given) from None
            raise self._damaged(at, str(error).removeprefix("zstd decompress error: ")) from None
        except (tarfile.TarError, EOFError) as error:
            if at == "its first bytes":
                raise _no_bundle(self.given) from None
            raise self._damaged(at, str(error)) from None
        except OSError as error:
            raise InputError(f"the bundle cannot be read: {error.strerror or error}", where=str(self.given),
                             found=f"at {at}", next="copy it again from the disk that it was made on") from None

    def _begins_as_zstd(self) -> bool:
        with (self.parts[0].path if self.parts else self.given).open("rb") as file:
            return file.read(4) == zstandard.FRAME_HEADER

    def _damaged(self, at: str, found: str) -> InputError:
        return InputError("the bundle is damaged", where=str(self.given), expected=f"{at} as the manifest names it",
                          found=found, next="copy it again, then: invoke bundle.verify " + self.given.name)


def _no_bundle(given: Path) -> InputError:
    return InputError("this is no bundle", where=str(given), expected="a file that `invoke bundle` made "
                      "(a tar in zstd that begins with its manifest)")


def read_manifest(given: Path) -> Manifest:
    """The manifest of a bundle, of its parts, or a manifest kept as a file of its own. Raises InputError."""
    if given.name.endswith(".json"):
        try:
            return parse_manifest(given.read_text(encoding="utf-8", errors="replace"), str(given))
        except OSError as error:
            raise InputError(f"the manifest cannot be read: {error.strerror or error}", where=str(given)) from None
    with BundleReader(given) as bundle:
        return bundle.manifest


def verify_bundle(given: Path, told: Told | None = None) -> tuple[Manifest | None, list[BringupError]]:
    """Read all of a bundle and say what is wrong with it: every damaged part, else the first damaged file.

    The manifest is None where it cannot be read. Raises InputError when there is no bundle or a part is missing.
    """
    wrong: list[BringupError] = [found for part in parts_of(given) or () if (found := check_part(part)) is not None]
    if wrong:
        return None, wrong
    try:
        with BundleReader(given) as bundle:
            for entry, pieces in bundle.files():
                done = 0
                for piece in pieces:
                    done += len(piece)
                    if told is not None:
                        told(entry, done)
            return bundle.manifest, []
    except InputError as error:
        return None, [error]
