"""Gathers what is needed into the project's cache and names it: a second try goes on where the first was cut off."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import platform as this
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bringup import __version__
from bringup.base.errors import InputError, LockedError, StepError
from bringup.base.paths import Project
from bringup.base.text import plural
from bringup.base.text import size as size_text
from bringup.bundle.content import pack_project, pack_source, requirements_here, write_text
from bringup.bundle.download import Wanted, fetch, sha256_of
from bringup.bundle.kernels import fetch_kernel, packages_of
from bringup.bundle.manifest import KINDS, Carried, Entry, Manifest, safe_name
from bringup.bundle.system import fetch_packages
from bringup.bundle.wanted import Needs, Wheels
from bringup.bundle.wheels import wheels_named, wheels_of, wheels_to_build
from bringup.environments.interpreters import Interpreter, fetch_interpreter, given_interpreter
from bringup.environments.supplies import lock_digest
from bringup.environments.uv import uv_blob, uv_version

AT_A_TIME = 4


class Teller(Protocol):
    """Shows a person how far it is: a line per subject, replaced until it is done."""

    def progress(self, subject: str, text: str) -> None: ...
    def done(self, subject: str, text: str) -> None: ...


@dataclass
class Collected:
    """Entries by path with the file here that each is, and the environments that they serve."""

    entries: dict[str, Entry] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    environments: list[Carried] = field(default_factory=list)

    def add(self, path: str, kind: str, file: Path, about: Mapping[str, str] | None = None, *,
            sha256: str | None = None) -> None:
        """Add a file; one that is there already under that name is kept when it is the same."""
        digest = sha256 or sha256_of(file)
        held = self.entries.get(path)
        if held is not None and held.sha256 != digest:
            folder, _, name = path.rpartition("/")
            path = f"{folder}/{digest[:12]}/{name}"
        self.entries[path] = Entry(path, kind, file.stat().st_size, digest, True, dict(about or {}))
        self.files[path] = file

    def manifest(self, name: str) -> Manifest:
        """What was collected, the small things first."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        order = sorted(self.entries.values(), key=lambda entry: (KINDS.index(entry.kind), entry.path))
        return Manifest(name, now, {"bringup": __version__, "uv": uv_version()}, tuple(self.environments), tuple(order))


def collect(needs: Needs, project: Project, settings: Mapping[str, str], tell: Teller) -> Collected:
    """Bring everything that is needed here. Raises StepError where something cannot be had; all that is fetched stays.
    LockedError where another one gathers in this project.

    `settings` are those of `package_settings`.
    """
    cache = project.state / "cache"
    out = Collected()
    with _alone(cache / "bundle"):
        _everything(needs, project, cache, settings, tell, out)
    return out


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else gathers into the same folder meanwhile. Raises LockedError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise LockedError("another `invoke bundle` gathers in this project", where=str(folder),
                              found=f"process {lock.read().strip() or 'unknown'}",
                              next="wait for it: what it fetches is not fetched again") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _everything(needs: Needs, project: Project, cache: Path, settings: Mapping[str, str], tell: Teller,
                out: Collected) -> None:
    _wheels(needs, cache, settings, tell, out)
    for machine in needs.machines:
        tell.progress("uv", machine)
        blob = uv_blob(machine, cache)
        out.add(f"uv/uv-{uv_version()}-{machine}", "uv", Path(str(blob.source)),
                {"machine": machine, "version": uv_version()}, sha256=blob.digest)
    if needs.machines:
        tell.done("uv", f"{uv_version()} for {', '.join(needs.machines)}")
    _interpreters(needs, cache, settings, tell, out)
    _system(needs, cache, tell, out)
    _given(needs, cache, tell, out)
    _kernels(needs, cache, tell, out)
    if needs.controller:
        _controller(project, cache, settings, tell, out)


def _wheels(needs: Needs, cache: Path, settings: Mapping[str, str], tell: Teller, out: Collected) -> None:
    wanted: dict[str, Wanted] = {}
    of: list[tuple[Wheels, dict[str, list[Wanted]]]] = []
    for item in needs.wheels:
        by_python = {}
        for python in item.pythons:
            tell.progress("wheels", f"{item.environment.name} {item.platform.name}, Python {python}: asking the index")
            by_python[python] = wheels_of(item.environment, item.lock, python, item.platform, settings)
            wanted.update((wheel.sha256, wheel) for wheel in by_python[python])
        of.append((item, by_python))
    places = fetch_all(list(wanted.values()), cache, settings, tell, "wheels")
    more = _to_build(of, places, settings, tell)
    if more:
        places.update(fetch_all(list(more.values()), cache, settings, tell, "to build"))
        wanted.update(more)
    for sha256, wheel in wanted.items():
        out.add(f"wheels/{safe_name(wheel.name)}", "wheel", places[sha256], sha256=sha256)
    for item, by_python in of:
        platform = item.platform
        out.environments.append(Carried(
            item.environment.name, platform.name, platform.machine, platform.glibc, platform.device,
            lock_digest(item.lock), {python: tuple(sorted(wheel.sha256 for wheel in wheels))
                                     for python, wheels in by_python.items()}))


def _to_build(of: Sequence[tuple[Wheels, dict[str, list[Wanted]]]], places: Mapping[str, Path],
              settings: Mapping[str, str], tell: Teller) -> dict[str, Wanted]:
    """What the hosts need to build the sources among what was fetched; it is added to each environment's files."""
    out: dict[str, Wanted] = {}
    for item, by_python in of:
        for python, files in by_python.items():
            for source in [one for one in files if not one.name.endswith(".whl")]:
                tell.progress("to build", source.name)
                found = wheels_to_build(places[source.sha256], item.environment, python, item.platform, settings)
                have = {one.sha256 for one in files}
                files += [one for one in found if one.sha256 not in have]
                out.update((one.sha256, one) for one in found)
    return out


def fetch_all(wanted: Sequence[Wanted], cache: Path, settings: Mapping[str, str], tell: Teller, subject: str
              ) -> dict[str, Path]:
    """Fetch files some at a time; SHA-256 -> where each lies. An interrupt ends all of them within a second."""
    places = {item.sha256: cache / "bundle" / "wheels" / item.sha256[:20] / safe_name(item.name) for item in wanted}
    missing = [item for item in wanted if not places[item.sha256].is_file()]
    missing = [item for item in missing if not _kept_elsewhere(item, places[item.sha256], cache)]
    _room_for(sum(item.size or 0 for item in missing), cache, subject)
    total = sum(item.size or 0 for item in missing)
    done: dict[str, int] = {}
    stop = threading.Event()

    def one(item: Wanted) -> None:
        def told(count: int) -> None:
            if stop.is_set():
                raise _Stopped
            done[item.sha256] = count
            tell.progress(subject, f"{size_text(sum(done.copy().values()))} of {size_text(total)}, {item.name}")

        if not stop.is_set():
            with contextlib.suppress(_Stopped):
                fetch(item, places[item.sha256], settings, told=told)

    with ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
        futures: list[Future[None]] = [pool.submit(one, item) for item in missing]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        future.result()
    size = sum(place.stat().st_size for place in places.values())
    here = len(wanted) - len(missing)
    tell.done(subject, f"{plural(len(wanted), 'file')}, {size_text(size)}" + (f"; {here} were here" if here else ""))
    return places


class _Stopped(Exception):
    """Another file failed, or the person interrupted."""


def _kept_elsewhere(item: Wanted, place: Path, cache: Path) -> bool:
    """Whether an environment's own download left the file here: it is linked, not fetched."""
    for found in (cache / "wheels").glob(f"*/{item.name}"):
        if sha256_of(found) == item.sha256:
            place.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                os.link(found, place)
                return True
    return False


def _room_for(size: int, cache: Path, subject: str) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    seen = os.statvfs(cache)
    free = seen.f_bavail * seen.f_frsize
    if size > free:
        raise StepError(f"the disk has no room for the {subject}", where=str(cache), expected=f"{size_text(size)} free",
                        found=f"{size_text(free)} free; nothing was fetched", next="free space, then run again")


def _interpreters(needs: Needs, cache: Path, settings: Mapping[str, str], tell: Teller, out: Collected) -> None:
    if needs.interpreters is None:
        tell.done("interpreters", "none: the hosts have their own (interpreters: hosts)")
        return
    found: list[Interpreter] = [given_interpreter(path, str(path)) for path in needs.interpreters]
    have = {(one.machine, ".".join(one.version.split(".")[:2])) for one in found}
    wanted = dict.fromkeys((item.platform.machine, python) for item in needs.wheels for python in item.pythons)
    for machine, python in wanted:
        if (machine, python) not in have:
            tell.progress("interpreters", f"Python {python} for {machine}")
            found.append(fetch_interpreter(python, machine, cache / "bundle", settings))
    for one in found:
        out.add(f"pythons/{safe_name(one.path.name)}", "python", one.path,
                {"machine": one.machine, "version": one.version, "soabi": one.soabi})
    tell.done("interpreters", ", ".join(f"{one.version} {one.machine}" for one in found) or "none")


def _system(needs: Needs, cache: Path, tell: Teller, out: Collected) -> None:
    for wanted in needs.packages:
        for machine in wanted.machines:
            tell.progress("system", f"{', '.join(wanted.names)} for {wanted.release} {machine}")
            fetched = fetch_packages(wanted, machine, cache / "bundle")
            folder = f"debs/{fetched.release}-{fetched.architecture}"
            about = {"release": fetched.release, "architecture": fetched.architecture, "machine": machine}
            for deb in fetched.debs:
                out.add(f"{folder}/{safe_name(deb.name)}", "deb", deb, about)
            out.add(f"{folder}/Packages", "debs", fetched.index, {**about, "names": " ".join(fetched.names)})
            tell.done("system", f"{', '.join(fetched.names)}: {plural(len(fetched.debs), 'package')} for "
                                f"{fetched.release} {fetched.architecture}")


def _given(needs: Needs, cache: Path, tell: Teller, out: Collected) -> None:
    """What the inventory names: archives of images, sources."""
    for image in needs.images:
        path = image.path
        out.add(f"images/{safe_name(path.name)}", "image", path, {"tags": " ".join(image.tags), "layers": image.layers})
        tell.done("images", f"{', '.join(image.tags) or path.name}, {size_text(path.stat().st_size)}")
    names: dict[str, Path] = {}
    for path in needs.sources:
        if names.setdefault(path.name, path) != path:
            raise InputError("two sources have one name", where=str(path), found=str(names[path.name]),
                             next="rename one of the folders")
        tell.progress("sources", path.name)
        packed = cache / "bundle" / "sources" / (f"{path.name}.tar" if path.is_dir() else path.name)
        pack_source(path, packed)
        out.add(f"sources/{safe_name(packed.name)}", "source", packed,
                {"name": path.name, "form": "folder" if path.is_dir() else "file"})
    if names:
        tell.done("sources", ", ".join(names))


def _kernels(needs: Needs, cache: Path, tell: Teller, out: Collected) -> None:
    for kernel in needs.kernels:
        tell.progress("kernels", kernel.label)
        packed = fetch_kernel(kernel, cache)
        if packed is not None:
            out.add(f"kernels/{safe_name(packed.name)}", "kernel", packed,
                    {"recipe": kernel.recipe.name, "revision": kernel.commit})
        tell.done("kernels", f"{kernel.label}, " + ("in the project" if packed is None else
                                                    size_text(packed.stat().st_size)))
    asked = {name.partition("=")[0] for wanted in needs.packages for name in wanted.names}
    left = [name for name in packages_of(needs.kernels) if name not in asked]
    if left:
        tell.done("note", f"these kernels need {', '.join(left)} on the hosts: name them under system_packages unless "
                          "the hosts have them")


def _controller(project: Project, cache: Path, settings: Mapping[str, str], tell: Teller, out: Collected) -> None:
    """This package and what it needs, for a controller like this one."""
    tell.progress("controller", "packing the project")
    packed = cache / "bundle" / "project.tar"
    pack_project(project.root, packed)
    out.add("package/project.tar", "package", packed)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine = "aarch64" if this.machine() in ("arm64", "aarch64") else "x86_64"
    requirements = requirements_here()
    listed = cache / "bundle" / "requirements.txt"
    write_text(listed, "".join(f"{item}\n" for item in requirements))
    out.add("package/requirements.txt", "package", listed, {"python": python, "machine": machine})
    wheels = wheels_named(requirements, python, f"{machine}-manylinux_2_28", settings)
    places = fetch_all(wheels, cache, settings, _Quiet(tell), "controller")
    for wheel in wheels:
        out.add(f"package/wheels/{safe_name(wheel.name)}", "package", places[wheel.sha256], sha256=wheel.sha256)
    tell.done("controller", f"bringup {__version__}, {plural(len(wheels), 'wheel')} for Python {python} on {machine}")


class _Quiet:
    """Passes progress on and keeps the last word for the caller."""

    def __init__(self, tell: Teller) -> None:
        self.progress: Callable[[str, str], None] = tell.progress

    def done(self, subject: str, text: str) -> None:
        return None


def room_for_output(manifest: Manifest, output: Path) -> None:
    """Refuse at once what cannot fit: wheels, interpreters and packages do not get smaller. Raises StepError."""
    least = sum(entry.size for entry in manifest.packed if entry.kind in ("wheel", "python", "deb"))
    with _named(output):
        seen = os.statvfs(output.parent)
    free = seen.f_bavail * seen.f_frsize
    if least > free:
        raise StepError("the bundle does not fit", where=str(output.parent), expected=f"more than {size_text(least)}",
                        found=f"{size_text(free)} free; nothing was written",
                        next="write elsewhere with --output; what was fetched is kept")


@contextlib.contextmanager
def _named(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"the folder of --output cannot be used: {error.strerror or error}",
                         where=str(output.parent)) from None
