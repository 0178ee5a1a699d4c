"""A host's answers on disk: `probes.json` and a file for each output or file read. Capture writes, replay reads.

    probes.json   {"format": 1, "host": "gpu01", "probes": [{"id", "rc", "seconds", "stdout": "nvidia.q.txt", ...}]}
    *.txt         what a command printed; ID.err.txt what it printed to standard error
    files/        files read, under their own path: files/proc/meminfo

What is not in it answers as a host without that tool. All of it may be written by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.probes import BY_ID, Probe

FORMAT = 1
ARCHIVES = (".tar.gz", ".tgz")
UNPACKED_LIMIT = 2 << 30
_ROOMS: list[tempfile.TemporaryDirectory[str]] = []
MANIFEST = "probes.json"
_TEXT, _FLAG = (str, "a text"), (bool, "true or false")
_SHAPES: Mapping[str, tuple[Any, str]] = {
    "id": _TEXT, "rc": (int, "a whole number"), "stdout": (str, "the name of a file"),
    "stderr": (str, "the name of a file"), "seconds": ((int, float), "a number"), "files": (list, "a list of paths"),
    "errors": (dict, "a mapping of paths"), "timed_out": _FLAG, "missing": _FLAG, "truncated": _FLAG,
    "abandoned": _TEXT, "skipped": _TEXT,
}
"""What the keys of an entry hold, and how that is said."""


def write(folder: Path, answers: Answers) -> int:
    """Save a host's answers; known secrets are masked. Returns the number of files. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = []
        count = 1
        for answer in answers.items.values():
            entry, written = _entry(folder, answer)
            entries.append(entry)
            count += written
        document = {"format": FORMAT, "host": answers.host, "clock": answers.clock, "connect": answers.connect,
                    "site": dict(answers.site), "probes": entries}
        (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(error.filename or folder)) from None
    return count


def _entry(folder: Path, answer: Answer) -> tuple[dict[str, Any], int]:
    probe = BY_ID.get(answer.probe)
    entry: dict[str, Any] = {"id": answer.probe}
    if probe is not None:
        entry["asked"] = probe.shown
    entry.update(rc=answer.rc, seconds=answer.seconds)
    for flag in ("timed_out", "missing", "truncated"):
        if getattr(answer, flag):
            entry[flag] = True
    for word in ("abandoned", "skipped"):
        if getattr(answer, word):
            entry[word] = getattr(answer, word)
    written = 0
    for stream, text in (("stdout", answer.stdout), ("stderr", answer.stderr)):
        if text:
            name = f"{answer.probe}.txt" if stream == "stdout" else f"{answer.probe}.err.txt"
            _put(_inside(folder, name), text)
            entry[stream] = name
            written += 1
    if answer.files:
        entry["files"] = sorted(answer.files)
        for path, text in answer.files.items():
            _put(_inside(folder / "files", path), text)
            written += 1
    if answer.errors:
        entry["errors"] = dict(answer.errors)
    return entry, written


def _inside(folder: Path, name: str) -> Path:
    """A path below the folder. A host names the files it read: it must not name one outside. Raises InputError."""
    path = folder / name.lstrip("/")
    if ".." in path.parts or "\0" in name:
        raise InputError(f"names a file outside of its folder: {name}", where=str(folder))
    return path


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # bytes, so that line ends stay as the tool printed them
    path.write_bytes(SCRUBBER.text(text).encode("utf-8", "surrogateescape"))


def read(folder: Path, host: str | None = None) -> Answers:
    """A recorded host. Raises InputError when the folder holds none."""
    manifest = folder / MANIFEST
    try:
        document = json.loads(manifest.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"is no recorded host: {error.strerror or error}", where=str(manifest),
                         next="invoke capture --output DIR writes one folder per host") from None
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", where=str(manifest)) from None
    if not isinstance(document, Mapping) or not isinstance(document.get("probes"), list):
        raise InputError("holds no list `probes`", where=str(manifest))
    if document.get("format", FORMAT) != FORMAT:
        raise InputError("is of another format", where=str(manifest), expected=str(FORMAT),
                         found=str(document.get("format")))
    name = host or str(document.get("host") or folder.name)
    answers = [_answer(folder, manifest, entry) for entry in document["probes"]]
    clock, connect = (_pair(document, name, manifest) for name in ("clock", "connect"))
    site = document.get("site")
    kept = {str(key): str(value) for key, value in site.items()} if isinstance(site, Mapping) else {}
    return Answers(name, {answer.probe: answer for answer in answers}, str(folder), clock, site=kept, connect=connect)


def _pair(document: Mapping[str, Any], name: str, manifest: Path) -> tuple[float, float] | None:
    """Two numbers of the manifest, None where they are left out. Raises InputError."""
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(
            isinstance(one, (int, float)) and not isinstance(one, bool) for one in value):
        raise InputError(f"`{name}` is a list of two numbers, seconds", where=str(manifest), found=str(value))
    return float(value[0]), float(value[1])


def _answer(folder: Path, manifest: Path, entry: Any) -> Answer:
    if not isinstance(entry, Mapping) or not entry.get("id"):
        raise InputError("has an entry without an id", where=str(manifest))
    for key, (kinds, words) in _SHAPES.items():
        value = entry.get(key)
        # true and false are whole numbers to Python, and to nobody else
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
            raise InputError(f"`{key}` of the entry {str(entry['id'])[:40]} is {words}", where=str(manifest),
                             found=str(value)[:80])
    below = str(folder / "files")
    files = {str(path): _take(below, str(path), manifest) for path in entry.get("files") or ()}
    raw: dict[str, Any] = {key: entry[key] for key in
                           ("id", "timed_out", "missing", "truncated", "abandoned", "seconds") if key in entry}
    raw.update(rc=entry.get("rc", 0), files=files, errors=entry.get("errors") or {})
    for stream in ("stdout", "stderr"):
        if entry.get(stream):
            raw[stream] = _take(str(folder), str(entry[stream]), manifest)
    answer = Answer.from_host(raw)
    if entry.get("skipped"):
        return Answer(answer.probe, rc=None, skipped=str(entry["skipped"]))
    return answer


def _take(folder: str, name: str, manifest: Path) -> str:
    """A file below a folder. Hundreds of small ones are read of each host: no Path is made of each."""
    path = os.path.join(folder, name.lstrip("/"))
    if "\0" in name or ".." in name.split("/"):
        raise InputError(f"names a file outside of its folder: {name}", where=str(folder))
    try:
        with open(path, "rb") as handle:
            return handle.read().decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"names {os.path.basename(path)}: {error.strerror or error}", where=str(manifest)) from None


@contextlib.contextmanager
def opened(target: Path) -> Iterator[Path]:
    """The folder to write recorded hosts to: `target` itself, or a passing one that becomes the archive `target`.

    Raises InputError.
    """
    if not target.name.endswith(ARCHIVES):
        yield target
        return
    try:
        with tempfile.TemporaryDirectory(prefix="bringup-capture-") as folder:
            yield Path(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(target.name + ".new")
            with tarfile.open(fresh, "w:gz") as archive:
                for child in sorted(Path(folder).iterdir()):
                    archive.add(child, child.name)
            fresh.replace(target)
    except OSError as error:
        raise InputError(f"the archive cannot be written: {error.strerror or error}", where=str(target)) from None


def _unpacked(path: Path) -> Path:
    """The folder that an archive was unpacked to: plain files below it only. It goes when the program ends."""
    room = tempfile.TemporaryDirectory(prefix="bringup-replay-")
    _ROOMS.append(room)
    folder, size = Path(room.name), 0
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if not member.isfile() or name.startswith("/") or ".." in Path(name).parts or "\0" in name:
                    continue
                size += member.size
                if size > UNPACKED_LIMIT:
                    raise InputError("holds more than a capture does", where=str(path), found=f"{size} B")
                source = archive.extractfile(member)
                assert source is not None
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(source.read())
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise InputError(f"is no archive that can be read: {error}", where=str(path)) from None
    return folder


def find(path: Path) -> list[Path]:
    """Recorded hosts at a path: the folder itself, every folder in it, or those of an archive. Raises InputError."""
    if path.is_file() and path.name.endswith(ARCHIVES):
        path = _unpacked(path)
        inner = [child for child in path.iterdir() if child.is_dir()]
        if len(inner) == 1 and not (inner[0] / MANIFEST).is_file():
            path = inner[0]
    if (path / MANIFEST).is_file():
        return [path]
    found = sorted(child for child in path.iterdir() if (child / MANIFEST).is_file()) if path.is_dir() else []
    if not found:
        raise InputError("holds no recorded host", where=str(path), expected=f"{MANIFEST}, or folders with one",
                         next="invoke capture --output DIR writes one folder per host")
    return found


def locate(name: str, places: Sequence[Path]) -> Path:
    """The folder that `bringup_replay` names: absolute, or below the first of `places` that has it.

    Raises InputError.
    """
    given = Path(name).expanduser()
    tried = [given] if given.is_absolute() else [place / given for place in places]
    for path in tried:
        if (path / MANIFEST).is_file():
            return path
    raise InputError(f"bringup_replay: no recorded host at `{name}`", found=", ".join(str(path) for path in tried))


def merged(recorded: Answers, live: Answers, probes: Sequence[Probe]) -> Answers:
    """A recorded host with the answers of the real one to what is always asked live."""
    items = dict(recorded.items)
    for probe in probes:
        if probe.live:
            items[probe.id] = live.get(probe.id)
    return Answers(live.host, items, recorded.replayed, live.clock, live.notes, live.site,
                   live.connect)
