"""Room for what the plan writes, folders that can run what is put there, and whole weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.base.text import plural, size
from bringup.preflight.parsers.host import nvme
from bringup.preflight.registry import Outcome, View, check, failed, fleet_check, noted, passed, skipped, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

_NETWORK = ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "beegfs", "gpfs", "glusterfs", "fuse.sshfs", "9p")


def _disk(view: View, path: str) -> Mapping[str, Any]:
    found = view.facts.disks.get(path)
    if found is None:
        raise Unread(f"{path} was not looked at", absent=True)
    if found.get("error"):
        raise Unread(f"{path}: {found['error']}")
    return found


@check("disk.space", "room under bringup_root for environments and releases", reads=("disk.room",),
       source="what the plan writes", absent="unknown", remedy="free some, or name another bringup_root")
def space(view: View) -> list[Outcome]:
    out = []
    seen = set()
    for path in ("/", view.need.root):
        try:
            disk = _disk(view, path)
        except Unread as error:
            if path == "/" and error.absent:
                continue
            raise
        if disk.get("mount") in seen:
            continue
        seen.add(disk.get("mount"))
        free, total = int(disk.get("free", 0)), int(disk.get("size", 0))
        # in the lab only small environments are built
        small = view.need.recorded or not view.need.deployed
        least = 1_000_000_000 if small else int(limits()["environment_bytes"].number)
        if free <= 0 or (path == view.need.root and free < least):
            out.append(failed(f"{path}: {size(free)} free of {size(total)}, {size(least)} needed",
                              required=size(least), found=size(free),
                              source=limits()["environment_bytes"].source if least > 1e9 else None))
        elif total and free < total * (1 - limits()["disk_used_warn"].number / 100) and free < 10 * least:
            out.append(warned(f"{path}: {size(free)} free of {size(total)}"))
    return out or [passed("enough")]


@check("disk.inodes", "inodes left where the plan writes", reads=("disk.room",),
       source="an environment holds many files", absent="unknown",
       remedy="remove many small files there, or name another folder")
def inodes(view: View) -> list[Outcome]:
    out = []
    seen = set()
    least = limits()["inodes_free_fail"]
    for path, disk in view.facts.disks.items():
        if path.startswith("~"):
            continue
        total, free = int(disk.get("inodes") or 0), int(disk.get("inodes_free") or 0)
        if not total or disk.get("mount") in seen or path in ("/dev/shm", "/tmp"):
            continue  # file systems without a fixed number of inodes say 0
        seen.add(disk.get("mount"))
        if free < least.number:
            out.append(failed(f"{path}: {free} of {total} inodes free: `No space left` though bytes are free",
                              required=str(least), found=str(free), source=least.source))
    return out or [passed("enough")]


@check("disk.weights", "room for what is missing of the weights", reads=("disk.room", "disk.weights"),
       source="recipe: size of the variant", remedy="free some, or name another model_path")
def weights_room(view: View) -> Outcome:
    need = view.need
    if not need.model_path or need.weights_bytes is None:
        return skipped("the plan names no weights")
    if need.recorded:
        return skipped("the accelerators are a recording's, nothing is loaded")
    disk = _disk(view, need.model_path)
    have = 0
    try:
        have = sum(int(one.get("size") or 0) for one in view.facts.weights.get("files", {}).values()
                   if not one.get("error") and not one.get("pointer"))
    except Unread:
        pass
    missing = need.weights_bytes - have
    # a checkpoint that is complete by its own index is judged there: the recipe's size is rounded
    if missing <= need.weights_bytes * 0.1 and have:
        return passed(f"{size(have)} are there")
    free = int(disk.get("free", 0))
    if free < missing:
        return failed(f"{need.model_path}: {size(free)} free, {size(missing)} needed", required=size(missing),
                      found=size(free))
    return passed(f"{size(free)} free for {size(missing)}")


@check("disk.home", "the home of the connecting account can be written", reads=("disk.room",),
       source="tools that it runs keep caches and locks there",
       remedy="mount it for writing, or set the caches' variables (HF_HOME, TRITON_CACHE_DIR, XDG_CACHE_HOME)")
def home(view: View) -> Outcome:
    disk = _disk(view, f"~{view.need.login}")
    if not disk.get("is_dir"):
        return skipped("the account has no home here")
    where = str(disk.get("existing"))
    if "ro" in str(disk.get("options", "")).split(","):
        return warned(f"{where} is mounted read-only", found="read-only")
    if disk.get("writable") is False:
        return warned(f"{where} cannot be written", found="no right to write")
    return passed(where)


@check("disk.local", "bringup_root lies on a local disk that can be written", reads=("disk.room",),
       source="lock, journal and `current` are the host's own", absent="unknown", remedy="name another bringup_root")
def local(view: View) -> Outcome:
    disk = _disk(view, view.need.root)
    if str(disk.get("type")) in _NETWORK:
        return failed(f"{view.need.root} is on {disk.get('type')} ({disk.get('device')}): hosts would share one state")
    if "ro" in str(disk.get("options", "")).split(","):
        return failed(f"{view.need.root} is mounted read-only ({disk.get('mount')})", mend="mount -o remount,rw "
                      f"{disk.get('mount')}; a file system turns read-only after disk errors: look at the kernel log")
    return passed(str(disk.get("type") or "local"))


@check("disk.execute", "files under bringup_root can be run", reads=("disk.execute",),
       source="found by running one: hardened images mount /tmp and /home noexec",
       remedy="name a bringup_root on a file system that is not noexec")
def execute(view: View) -> Outcome:
    tried = [(str(one.get("path")), str(one.get("result"))) for one in view.facts.executes]
    good = [path for path, result in tried if result == "runs"]
    bad = [path for path, result in tried if result.startswith(("cannot run", "fails"))]
    root = dict(tried).get(view.need.root, "")
    if root == "runs":
        also = f"; not in {', '.join(bad)}: builds take a folder under {view.need.root}" if bad else ""
        return passed(f"{view.need.root}{also}")
    if view.need.root in bad:
        return failed(f"no file can be run under {view.need.root} (tried: {', '.join(path for path, _ in tried)})",
                      details=tuple(f"{path}: {result}" for path, result in tried),
                      mend=f"bringup_root: {good[0]}/bringup" if good else None)
    return skipped(f"{view.need.root}: {root or 'not tried'}")


@check("disk.health", "no NVMe disk warns of its end", reads=("host.nvme",),
       source="nvme smart-log: critical_warning 0",
       remedy="save what is on it and replace it; nvme smart-log DEVICE says what it warns of")
def health(view: View) -> list[Outcome]:
    disks = nvme(view.facts.answers.text("host.nvme", any_status=True))
    out: list[Outcome] = [failed(f"{device}: critical warning {warning:#04x}", required="0x00", found=f"{warning:#04x}")
                          for device, (warning, _) in sorted(disks.items()) if warning]
    worn = [f"{device} {used} %" for device, (_, used) in sorted(disks.items()) if used is not None and used >= 100]
    if worn:
        out.append(warned(f"written past the life that its maker gives: {', '.join(worn)}",
                          mend="plan its replacement"))
    return out or [passed(plural(len(disks), "disk"))]


@check("weights.complete", "every shard is there and as long as its own header says", reads=("disk.weights",),
       source="safetensors: length + header + last tensor", remedy="fetch the files that it names again")
def complete(view: View) -> list[Outcome]:
    need = view.need
    if not need.model_path:
        return [skipped("the plan names no model folder")]
    found = view.facts.weights
    files: Mapping[str, Mapping[str, Any]] = found.get("files", {})
    if not found.get("exists"):
        if view.need.recorded:
            return [skipped(f"{need.model_path} is not there; the accelerators are a recording's, nothing is loaded")]
        return [noted(f"{need.model_path} is not there yet")]
    if not files:
        if view.need.recorded:
            return [skipped("no shards; the accelerators are a recording's, nothing is loaded")]
        if need.weights_fetched:
            return [noted(f"no safetensors in {need.model_path}: the stage `weights` brings them")]
        return [failed(f"no safetensors in {need.model_path}")]
    out = []
    for name, one in sorted(files.items()):
        text = _trouble(one)
        if text:
            out.append(text if name in text else f"{name}: {text}")
    if out and need.weights_fetched:
        return [noted(out[0] + (f"  (and {len(out) - 1} more)" if out[1:] else "") + ": the stage `weights` brings it",
                      details=tuple(out[1:7]))]
    if out:
        return [failed(out[0] + (f"  (and {len(out) - 1} more)" if out[1:] else ""), details=tuple(out[1:7]),
                       mend=f"fetch {plural(len(out), 'file')} again; nothing was removed")]
    total = sum(int(one.get("size", 0)) for one in files.values())
    if need.weights_bytes and not found.get("index") and total < need.weights_bytes * 0.5:
        return [failed(f"{size(total)} in {len(files)} shards and no index; the variant has "
                       f"{size(need.weights_bytes)}")]
    return [passed(f"{len(files)} shards, {size(total)}")]


def _trouble(one: Mapping[str, Any]) -> str:
    have, want = one.get("size"), one.get("expected")
    if one.get("pointer"):
        of = f" of a {size(int(want))} file" if want else ""
        return f"a pointer text{of}, not weights: cloned without git-lfs"
    if one.get("error") == "missing":
        return "named by the index, not there"
    if one.get("error"):
        return f"{one['error']} ({have} bytes)" if have is not None else str(one["error"])
    if have is not None and want is not None and int(have) != int(want):
        word = "short" if int(have) < int(want) else "too long"
        return f"{abs(int(want) - int(have)):,} bytes {word} ({int(have):,} of {int(want):,})"
    return ""


@check("weights.partial", "no remains of a broken download", reads=("disk.weights",),
       source="a download cut off leaves large .incomplete files", remedy="remove them when no download runs")
def partial(view: View) -> Outcome:
    if not view.need.model_path:
        return skipped("the plan names no model folder")
    left = view.facts.weights.get("partial", [])
    if left:
        total = sum(int(one.get("size", 0)) for one in left)
        return warned(f"{plural(len(left), 'unfinished part')}, {size(total)}: {left[0].get('name')}")
    return passed("none")


@fleet_check("weights.equal", "all hosts of a replica have the same model files", reads=("disk.weights",),
             source="one revision on all ranks", remedy="copy the model from the host that is right")
def equal(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[str, str]] = {}
    absent = []
    fetched = {view.host for view in views if view.need.weights_fetched}
    for view in views:
        if not view.need.model_path or view.need.spare:
            continue
        try:
            found = view.facts.weights
        except Unread:
            continue
        if not found.get("exists"):
            absent.append(view.host)
            continue
        files = dict(found.get("digests", {}))
        files.update({name: str(one["header"]) for name, one in found.get("files", {}).items() if one.get("header")})
        seen[view.host] = files
    if len(seen) + len(absent) < 2 or not seen:
        return
    for host in absent:
        told = f"the model folder is not there (it is on {len(seen)} others)"
        yield noted(f"{told}: the stage `weights` brings it", subject=host) if host in fetched else failed(
            told, subject=host)
    names = sorted({name for files in seen.values() for name in files})
    for host, files in seen.items():
        odd = []
        for name in names:
            values = [other.get(name, "") for other in seen.values()]
            usual = max(sorted(set(values)), key=values.count)
            if files.get(name, "") != usual:
                odd.append(f"{name} {'differs' if files.get(name) else 'is missing'}")
        if odd and host in fetched and all(text.endswith(" is missing") for text in odd):
            yield noted(f"{odd[0]}: the stage `weights` brings it", details=tuple(odd[1:5]), subject=host)
        elif odd and len(seen) > 1:
            yield failed(odd[0] + (f" and {len(odd) - 1} more" if odd[1:] else ""), details=tuple(odd[1:5]),
                         subject=host)
        else:
            yield passed(f"{len(files)} files", subject=host)
