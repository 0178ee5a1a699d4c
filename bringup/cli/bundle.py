"""Verbs of offline bundles: made where there is a network, verified, shown, and opened for the verbs that use one."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError
from bringup.base.secrets import SCRUBBER
from bringup.cli.options import FORMAT, READING, Option, Options, verb

if TYPE_CHECKING:
    from bringup.bundle.collect import Collected
    from bringup.bundle.manifest import Entry, Manifest
    from bringup.bundle.wanted import Needs
    from bringup.cli.running import Reading

BUNDLE = Option("bundle", help="take everything from this bundle; again for the bundle that an update builds on",
                many=True)
FILE = Option("file", help="a bundle, its list of parts or one of them", positional=True)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LEAST_PART = 1 << 20

_MAKING = (
    *(option for option in READING if option.name not in ("report", "verbose")),
    Option("output", help="file to write", short="o"),
    Option("split", help="cut it into parts of this size for carrying: 4G, 650M"),
    Option("since", help="pack only what this earlier bundle (or its manifest, FILE.json) does not have"),
    Option("platform", help="platform of the environments; may be given again (default: all that fit)", many=True),
    Option("python", help="carry wheels for Python 3.12; may be given again (default: the most wanted)", many=True),
    Option("controller", False, "also write FILE.controller.tar: bringup itself, for a machine with sh and tar"),
    Option("overwrite", False, "replace the output where it is there"),
    Option("check", False, "say what would be fetched, write nothing", short="C"),
)


@verb(_MAKING, name="bundle.run")
def make(options: Options) -> int:
    """Gather all that a deployment needs into one file, for a site that reaches no network."""
    from bringup.base.paths import Project
    from bringup.base.text import plural
    from bringup.bundle.collect import collect
    from bringup.bundle.show import summary

    project = Project.find()
    split = size_of(options.split) if options.split else None
    output = Path(options.output) if options.output else None
    if output is None and not options.check:
        raise InputError("--output is missing", expected="--output NAME.tar.zst", next="invoke bundle --help")
    needs, settings = _needs(options, project)
    if options.controller and not needs.controller:
        raise InputError("--controller, but the inventory's `bundle` says controller: false",
                         next="take one of the two out")
    base = _base(options.since)
    if output is not None:
        _free(output, split, overwrite=options.overwrite)
    tell = _Lines(as_json=options.format == "json")
    what = summary(needs.wheels) or ", ".join(tag for image in needs.images for tag in image.tags)
    tell.say(f"bundle · {plural(len(needs.hosts), 'host')} · {what}")
    if options.check:
        _would(needs, settings, tell)
        return 0
    assert output is not None
    collected = collect(needs, project, settings, tell)
    manifest, written = _write(collected, (output, split, base), tell)
    if options.controller:
        written.append(_controller(collected, project, output, settings, tell))
    _told(options, manifest, written, output, tell)
    return 0


make.is_default = True  # `invoke bundle`: Invoke has no verb that is a collection too, but a collection has a default


def _needs(options: Options, project: Any) -> tuple[Needs, dict[str, str]]:
    """What the inventory asks for. Its secrets are known to the scrubber from here on."""
    from bringup.bundle.secrets import learn_secrets
    from bringup.bundle.wanted import needs_of
    from bringup.cli.inventory import load_for
    from bringup.environments.indexes import package_settings

    inventory = load_for(options)
    hosts = list(inventory.select(options.limit)) if options.limit else list(inventory.hosts)
    if not hosts:
        raise InputError("the inventory names no host")
    learn_secrets((inventory.variables(host) for host in hosts), inventory.vault)
    variables = _variables(inventory, project)
    needs = needs_of(project.root, hosts, variables, options.platform, options.python)
    return needs, package_settings(variables(hosts[0]).get("bringup_packages"))


def _variables(inventory: Any, project: Any) -> Any:
    from bringup.cli.plan import _of_lab
    from bringup.serving.planning.variables import rendered

    lab = any(str(inventory.variables(host).get("bringup_lab", "")).lower() in ("true", "yes", "1")
              for host in inventory.hosts)
    return rendered(inventory, _of_lab(project, list(inventory.hosts)) if lab else None)


def _base(since: str | None) -> Manifest | None:
    from bringup.bundle.archive import read_manifest

    return read_manifest(Path(since)) if since else None


def _free(output: Path, split: int | None, *, overwrite: bool) -> None:
    from bringup.bundle.parts import list_of

    if not output.parent.is_dir():
        raise InputError("the folder of --output is not there", where=str(output.parent))
    if output.is_dir() or re.search(r"\.(\d{3,}|parts|json)$", output.name):
        raise InputError("--output names no bundle", found=str(output), expected="a file such as glm51.tar.zst")
    there = [path for path in (output, list_of(output)) if path.exists()]
    if there and not overwrite:
        raise InputError("the output is there already", where=str(there[0]),
                         next="take another name, or --overwrite")
    other = output if split else list_of(output)
    if other.exists():
        form = "as one file" if split else "in parts"
        raise InputError(f"the output is there {form}, which would stay behind", where=str(other),
                         next="remove that, or take another name")


def _would(needs: Needs, settings: dict[str, str], tell: _Lines) -> None:
    """Ask the index what there is to fetch; nothing is downloaded."""
    from bringup.base.text import plural
    from bringup.base.text import size as size_text
    from bringup.bundle.wheels import wheels_of

    for item in needs.wheels:
        for python in item.pythons:
            found = wheels_of(item.environment, item.lock, python, item.platform, settings)
            tell.done("wheels", f"{item.environment.name} on {item.platform.name}, Python {python}: "
                                f"{plural(len(found), 'file')}, {size_text(sum(one.size or 0 for one in found))}")
    tell.say("nothing was fetched and nothing was written")


def _write(collected: Collected, target: tuple[Path, int | None, Manifest | None], tell: _Lines
           ) -> tuple[Manifest, list[Path]]:
    from bringup.base.text import size as size_text
    from bringup.bundle.archive import write_bundle
    from bringup.bundle.collect import room_for_output
    from bringup.bundle.manifest import without
    from bringup.bundle.secrets import refuse_in

    output, split, base = target
    manifest = collected.manifest(output.name)
    if base is not None:
        manifest = without(manifest, base)
    refuse_in(manifest.text().encode(), "the manifest")
    room_for_output(manifest, output)
    total, before = sum(entry.size for entry in manifest.packed), 0
    sizes: dict[str, int] = {}

    def told(entry: Entry, done: int) -> None:
        sizes[entry.path] = done
        nonlocal before
        written = sum(sizes.values())
        if written - before >= 1 << 24:
            before = written
            tell.progress("written", f"{size_text(written)} of {size_text(total)}")

    written = write_bundle(manifest, collected.files, output, split=split, told=told)
    size = sum(path.stat().st_size for path in written)
    parts = f" in {len(written) - 1} parts and their list" if split else ""
    tell.done("written", f"{output}{parts}, {size_text(size)}")
    return manifest, written


def _controller(collected: Collected, project: Any, output: Path, settings: dict[str, str], tell: _Lines) -> Path:
    import platform

    from bringup.base.errors import StepError
    from bringup.base.text import size as size_text
    from bringup.bundle.controller import write_controller
    from bringup.environments.interpreters import fetch_interpreter
    from bringup.environments.uv import uv_program

    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = None
    try:
        interpreter = fetch_interpreter(python, platform.machine(), project.state / "cache" / "bundle", settings).path
    except StepError as error:
        tell.done("note", f"that machine needs a Python {python} of its own: {error.what}")
    made = write_controller(tuple(collected.entries.values()), collected.files, output, python=python,
                            uv=uv_program(), interpreter=interpreter)
    tell.done("controller", f"{made}, {size_text(made.stat().st_size)}")
    return made


def _told(options: Options, manifest: Manifest, written: list[Path], output: Path, tell: _Lines) -> None:
    from bringup.bundle.show import as_document, keep_manifest

    kept = keep_manifest(manifest, output)
    if options.format == "json":
        print(json.dumps({**as_document(manifest), "files": [str(path) for path in written]}))
        return
    base = f", an update of {manifest.base.name} ({manifest.base.digest[:12]})" if manifest.base else ""
    words = ["invoke provision", *(f"--inventory {name}" for name in options.inventory),
             *([f"--bundle {manifest.base.name}"] if manifest.base else []), f"--bundle {output.name}"]
    tell.say("")
    tell.say(f"bundle   {output.name}   {manifest.digest[:12]}{base}")
    tell.say(f"keep     {kept.name}, its manifest: an update names it with --since")
    if options.controller:
        tell.say(f"install  tar -xf {output.name}.controller.tar && sh bringup/install.sh FOLDER")
    tell.say(f"there    invoke bundle.verify {output.name}")
    tell.say("then     " + " ".join(words))


@verb([FILE, FORMAT], name="bundle.verify")
def verify(options: Options) -> int:
    """Read a whole bundle and prove every file in it, part by part where it was split (exit 4 when one is damaged)."""
    from bringup.base.text import plural
    from bringup.base.text import size as size_text
    from bringup.bundle.archive import verify_bundle
    from bringup.bundle.parts import parts_of

    given = Path(options.file)
    began = time.monotonic()
    tell = _Lines(as_json=options.format == "json")
    seen = 0

    def told(entry: Entry, done: int) -> None:
        nonlocal seen
        seen += 1
        if seen % 16 == 0:
            tell.progress("verify", entry.path)

    parts = parts_of(given) or []
    manifest, wrong = verify_bundle(given, told)
    tell.end()
    if options.format == "json":
        print(json.dumps({"file": str(given), "good": not wrong, "digest": manifest.digest if manifest else None,
                          "parts": len(parts), "wrong": [{"what": one.what, "where": str(one.where),
                                                          "expected": one.expected, "found": one.found}
                                                         for one in wrong]}))
        return int(ExitStatus.FINDING) if wrong else 0
    for one in wrong:
        print("\n".join(SCRUBBER.text(line) for line in one.lines()))
    if manifest is None:
        print(f"DAMAGED  {given.name}" + (f": {len(wrong)} of {plural(len(parts), 'part')}" if parts else ""))
        return int(ExitStatus.FINDING)
    listed = f" in {plural(len(parts), 'part')}" if parts else ""
    unlisted = "; its list of parts is not here: they were proven by their content" if parts and not parts[0].sha256 \
        else ""
    print(f"good     {given.name}{listed}   {manifest.digest[:12]}")
    size = size_text(sum(entry.size for entry in manifest.packed))
    print(f"         {plural(len(manifest.packed), 'file')}, {size}, each as the manifest names it, "
          f"{time.monotonic() - began:.1f} s{unlisted}")
    if manifest.base:
        print(f"update   of {manifest.base.name} ({manifest.base.digest[:12]}): that one is needed too")
    return 0


@verb([FILE, FORMAT, Option("files", False, "a line for each file too")], name="bundle.show")
def show(options: Options) -> int:
    """Show what a bundle (or its manifest, FILE.json) holds: environments, platforms, files, what it builds on."""
    from bringup.bundle.archive import read_manifest
    from bringup.bundle.show import as_document, as_lines
    from bringup.serving.planning.show import width_of_screen

    manifest = read_manifest(Path(options.file))
    if options.format == "json":
        print(json.dumps(as_document(manifest), indent=1))
        return 0
    for line in as_lines(manifest, width_of_screen(), files=options.files):
        print(SCRUBBER.text(line))
    return 0


@verb([Option("old", help="a bundle or its manifest, FILE.json: what a site has", positional=True),
       Option("new", help="the other one", positional=True), FORMAT,
       Option("files", False, "a line for each file too")], name="bundle.diff")
def diff(options: Options) -> int:
    """Compare two bundles: environments, packages, interpreters, images, and how much there is to carry."""
    from bringup.bundle.archive import read_manifest
    from bringup.bundle.compare import as_document, as_lines, compare
    from bringup.serving.planning.show import width_of_screen

    found = compare(read_manifest(Path(options.old)), read_manifest(Path(options.new)))
    if options.format == "json":
        print(json.dumps(as_document(found), indent=1))
        return 0
    for line in as_lines(found, width_of_screen(), files=options.files):
        print(SCRUBBER.text(line))
    return 0


def use_bundle(options: Options, reading: Reading, names: Sequence[str] = ()) -> None:
    """Open the bundles of --bundle for a run: unpacked on this machine, proven, named in `bringup_bundle`.

    `names` are environments that were named instead of the deployment's.

    Raises InputError before anything is contacted: damaged, a part or a base missing, a lock changed since; StepError
    when the disk here is full.
    """
    from bringup.bundle.archive import read_manifest
    from bringup.bundle.store import Store, newest, open_bundles, refuse_changed_locks
    from bringup.environments.build import wanted_names

    if not options.bundle:
        return
    given = [Path(text) for text in options.bundle]
    hosts = list(reading.limit) if reading.limit is not None else list(reading.inventory.hosts)
    variables = _variables(reading.inventory, reading.project)
    wanted = list(dict.fromkeys(name for host in hosts for name in wanted_names(variables(host), names)))
    refuse_changed_locks(newest([read_manifest(path) for path in given]), reading.project.root, wanted)
    tell = _Lines(as_json=True)

    def told(entry: Entry, done: int) -> None:
        tell.progress("bundle", f"unpacking {entry.path}")

    opened = open_bundles(given, Store(reading.project.state / "cache" / "bundles"), told)
    tell.end()
    reading.extra_vars["bringup_bundle"] = str(opened.supplies)
    reading.extra_vars["bringup_bundle_sources"] = str(opened.sources)


def size_of(text: str) -> int:
    """Bytes of `4G`, `650M` (powers of ten, as disks are sold) or `4GiB`. Raises InputError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if not found:
        raise InputError("--split takes a size", found=text, expected="4G, 650M, 4GiB")
    unit = 1024 ** "kmgt".index(found[2]) * 1024 if found[3] and found[2] else _UNITS[found[2]]
    count = int(float(found[1]) * unit)
    if count < _LEAST_PART:
        raise InputError("--split takes at least 1 MiB", found=text)
    return count


class _Lines:
    """A line per subject. On a terminal a line is replaced until it is done; piped, only what is done is printed."""

    def __init__(self, *, as_json: bool) -> None:
        # a document on standard output stays alone there
        self.out = sys.stderr if as_json else sys.stdout
        self.live = self.out.isatty()
        self.quiet = as_json and not self.live
        self.began: dict[str, float] = {}
        self.at = 0.0
        self.width = _columns()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.end()
            for line in _folded(SCRUBBER.text(text), self.width):
                print(line, file=self.out, flush=True)

    def progress(self, subject: str, text: str) -> None:
        now = time.monotonic()
        self.began.setdefault(subject, now)
        if self.live and now - self.at > 0.1:
            self.at = now
            line = SCRUBBER.text(f"  {subject:<13} {text}")[:self.width - 1]
            print(f"\r\x1b[K{line}", end="", file=self.out, flush=True)

    def done(self, subject: str, text: str) -> None:
        from bringup.base.text import duration

        seconds = time.monotonic() - self.began.pop(subject, time.monotonic())
        took = f"   {duration(seconds)}" if seconds >= 1 else ""
        self.say(f"  {subject:<13} {text}{took}")

    def end(self) -> None:
        if self.live and self.at:
            print("\r\x1b[K", end="", file=self.out, flush=True)


def _columns() -> int:
    from bringup.serving.planning.show import width_of_screen

    return width_of_screen()


def _folded(text: str, width: int) -> list[str]:
    from bringup.ui.wrapping import cut

    if len(text) <= width:
        return [text]
    lead = re.match(r"\s*\S+\s{2,}", text)
    head = lead.group(0) if lead else ""
    return cut(text[len(head):], width, head, " " * len(head))
