"""NVLink, NVSwitch and the fabric that joins them."""

from __future__ import annotations

import re

from bringup.preflight.checks.devices import gpus
from bringup.preflight.checks.driver import DRIVER
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, unknown, warned
from bringup.preflight.requirement import Profile
from bringup.preflight.unread import Unread

_SWITCHES = {("10de", "1af1"), ("10de", "22a3"), ("10de", "1af0")}
"""NVSwitch bridges by vendor and device: A100 (1af1), H100 and H200 (22a3)."""


def has_switch(view: View) -> bool | None:
    """True when an NVSwitch stands on the PCI bus; None when the bus cannot be read."""
    try:
        return any((one.vendor, one.device) in _SWITCHES or (one.vendor == "10de" and one.kind == "0680")
                   for one in view.facts.pci)
    except Unread:
        return None


def wants_links(view: View) -> Profile | None:
    """The profile when its GPUs have NVLinks."""
    profile = view.profile
    return profile if profile is not None and profile.nvlinks is not None else None


def _none(view: View) -> bool:
    """True for one GPU passed through to a virtual machine: the tool then prints nothing and exits 0."""
    answer = view.facts.answers.get("nvidia.nvlink")
    printed = answer.stdout + answer.stderr
    return not (answer.missing or answer.timed_out or answer.rc or printed.strip()) and len(view.facts.smi.gpus) == 1


@check("nvlink.up", "every NVLink of every GPU is up", platform="nvidia", reads=("nvidia.nvlink",),
       source="hardware profile; Azure, imbue: any inactive link fails", absent="unknown",
       after=(*DRIVER, "nvidia.mig"), remedy="reset all GPUs of the host; reseat or replace when a link stays down")
def links_up(view: View) -> Outcome | list[Outcome]:
    profile = wants_links(view)
    if _none(view):
        return skipped("nvidia-smi shows no NVLink, and one GPU has no peer")
    out = []
    count = 0
    for links in view.facts.nvlinks:
        note = links.note.lower()
        if "not have or support" in note:
            if profile:
                out.append(failed(f"GPU {links.gpu}: {links.note}", required=f"{profile.nvlinks} links"))
            continue
        if "mig" in note:
            return skipped(links.note)
        if "all links are inactive" in note or (links.down and len(links.down) == len(links.speeds)):
            out.append(failed(f"GPU {links.gpu}: all links are inactive",
                              mend="systemctl status nvidia-fabricmanager; journalctl -k -b | grep -i nvswitch"))
        elif links.note:
            out.append(unknown(f"GPU {links.gpu}: {links.note}"))
        elif links.down:
            down = ", ".join(str(link) for link in links.down)
            out.append(failed(f"GPU {links.gpu}: link {down} inactive",
                              found=f"{len(links.down)} of {len(links.speeds)} down",
                              details=("NCCL then takes a detour or hangs at start",)))
        elif profile and profile.nvlinks and len(links.speeds) < profile.nvlinks.number:
            out.append(failed(f"GPU {links.gpu}: {len(links.speeds)} links", required=str(profile.nvlinks),
                              source=profile.nvlinks.source))
        count = max(count, len(links.speeds))
    if out:
        return out
    missing = _unlisted(view)
    if missing:
        return unknown(f"nvidia-smi nvlink -s tells of {len(view.facts.nvlinks)} of {missing} GPUs")
    return passed(f"{count} of {count} on each GPU") if count else skipped("these GPUs have no NVLink")


def _unlisted(view: View) -> int:
    """How many GPUs there are where the answer about links tells of fewer; 0 where it tells of all."""
    try:
        count = len(view.facts.smi.gpus)
    except Unread:
        return 0
    return count if len(view.facts.nvlinks) < count else 0


@check("nvlink.speed", "every NVLink runs at the speed of its kind", platform="nvidia", reads=("nvidia.nvlink",),
       source="hardware profile", after=(*DRIVER, "nvlink.up"), remedy="reset all GPUs of the host")
def link_speed(view: View) -> Outcome:
    profile = wants_links(view)
    if _none(view):
        return skipped("nvidia-smi shows no NVLink, and one GPU has no peer")
    if profile is None or profile.nvlink_speed is None:
        return skipped("no profile says how fast they must be")
    slow = [f"GPU {links.gpu} link {link}: {speed:g}" for links in view.facts.nvlinks
            for link, speed in links.speeds.items() if speed is not None and speed < profile.nvlink_speed * 0.99]
    if slow:
        return failed(f"{slow[0]} GB/s" + (f" and {len(slow) - 1} more" if slow[1:] else ""),
                      required=f"{profile.nvlink_speed:g} GB/s")
    return passed(f"{profile.nvlink_speed:g} GB/s")


@check("nvlink.errors", "the links count no errors", platform="nvidia", reads=("nvidia.nvlink_errors",),
       source="imbue: warn at 5 in total; DCGM: any replay or recovery", after=(*DRIVER, "nvlink.up"),
       remedy="watch it; replace the board when counts grow")
def link_errors(view: View) -> Outcome:
    if _none(view):
        return skipped("nvidia-smi shows no NVLink, and one GPU has no peer")
    seen = {gpu: errors for gpu, errors in view.facts.nvlink_errors.items() if errors}
    if not seen:
        return passed("0")
    total = sum(sum(errors.values()) for errors in seen.values())
    words = "; ".join(f"GPU {gpu}: " + ", ".join(f"{name} {count}" for name, count in errors.items())
                      for gpu, errors in seen.items())
    return warned(words) if total >= 5 else noted(words)


@check("nvlink.matrix", "every pair of GPUs is joined by NVLink", platform="nvidia", reads=("nvidia.topo",),
       source="hardware profile: NV18 on H100 and H200", after=(*DRIVER, "nvlink.up", "nvidia.mig"),
       remedy="systemctl restart nvidia-fabricmanager; then reset the GPUs")
def matrix(view: View) -> Outcome:
    profile = wants_links(view)
    topology = view.facts.topology
    names = topology.gpus()
    if len(names) < 2:
        return skipped("one GPU has no pair")
    if profile is None:
        return skipped("no profile says how they are joined")
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1:]]
    odd = []
    for a, b in pairs:
        cell = topology.cells.get((a, b), "?")
        found = re.fullmatch(r"NV(\d+)", cell)
        if not found or (profile.nvlinks and int(found.group(1)) < profile.nvlinks.number):
            odd.append(f"{a}-{b} {cell}")
    if odd:
        return failed(", ".join(odd[:4]) + (f" and {len(odd) - 4} more" if odd[4:] else ""),
                      required=f"NV{profile.nvlinks.value}" if profile.nvlinks else None)
    return passed(f"{topology.cells[pairs[0]]} between all {len(names)}")


@check("nvlink.p2p", "peer-to-peer access works between all GPUs", platform="nvidia", reads=("nvidia.p2p",),
       source="CUDA: OK in every cell", after=(*DRIVER, "nvidia.mig"), remedy="see nvlink.up and pcie.acs")
def p2p(view: View) -> Outcome:
    table = view.facts.p2p
    names = table.gpus()
    if len(names) < 2:
        return skipped("one GPU has no pair")
    odd = [f"{a}-{b} {table.cells[(a, b)]}" for a in names for b in names
           if a != b and table.cells.get((a, b)) != "OK"]
    if odd:
        return failed(odd[0] + (f" and {len(odd) - 1} more" if odd[1:] else ""))
    return passed(f"all {len(names)}")


@check("fabric.state", "every GPU is registered with its fabric", platform="nvidia", reads=("nvidia.q",),
       source="Fabric State Completed, Status Success; else CUDA error 802", after=DRIVER,
       remedy="systemctl restart nvidia-fabricmanager")
def fabric_state(view: View) -> Outcome:
    log = view.facts.smi
    waiting = [gpu for gpu in log.gpus if gpu.fabric_state and gpu.fabric_state != "Completed"]
    bad = [gpu for gpu in log.gpus if gpu.fabric_state == "Completed" and gpu.fabric_status not in ("", "Success")]
    if waiting:
        return failed(f"{gpus(gpu.index for gpu in waiting)}: {waiting[0].fabric_state}: CUDA will answer 802, "
                      "system not yet initialized", mend="systemctl status nvidia-fabricmanager; then restart it")
    if bad:
        return failed(f"{gpus(gpu.index for gpu in bad)}: {bad[0].fabric_status}")
    if not any(gpu.fabric_state for gpu in log.gpus):
        profile = view.profile
        if has_switch(view) and profile and profile.nvswitch:
            return failed("the GPUs know no fabric though an NVSwitch is there")
        return skipped("these GPUs belong to no fabric")
    return passed("Completed, Success")


@check("fabric.health", "the fabric reports no trouble", platform="nvidia", reads=("nvidia.q",),
       source="gpud: any health bit", after=DRIVER, remedy="nvidia-smi -q -d FABRIC; open a case with the vendor")
def fabric_health(view: View) -> Outcome:
    odd = [gpu for gpu in view.facts.smi.gpus if gpu.fabric_health]
    if odd:
        return failed(f"{gpus(gpu.index for gpu in odd)}: {', '.join(odd[0].fabric_health)}")
    return passed("no trouble")


@check("fabric.manager", "the fabric manager runs where an NVSwitch is, and only there", platform="nvidia",
       reads=("nvidia.fabricmanager", "host.pci"), source="imbue, gpud; a VM's provider runs it outside",
       remedy="sudo systemctl enable --now nvidia-fabricmanager")
def manager(view: View) -> Outcome:
    switch = has_switch(view)
    if switch is None:
        raise Unread("the PCI bus cannot be read")
    if not switch:
        return skipped("no NVSwitch on this host's bus: none is needed")
    unit = view.facts.fabric_manager
    state, load = unit.get("ActiveState", ""), unit.get("LoadState", "")
    if state == "active":
        return passed("active")
    if load in ("not-found", "masked"):
        word = "is masked" if load == "masked" else "is not installed"
        mend = "sudo systemctl unmask --now nvidia-fabricmanager" if load == "masked" else \
            "install nvidia-fabricmanager of the driver's version"
        return failed(f"an NVSwitch is there, the fabric manager {word}", mend=mend)
    details: tuple[str, ...] = ()
    try:
        log = view.facts.answers.text("nvidia.fabricmanager_log")
        details = tuple(line.strip() for line in log.splitlines() if "don't match" in line or "rror" in line)[-2:]
    except Unread:
        pass
    return failed(f"the fabric manager is {state or 'in no known state'}", details=details,
                  mend="install the fabric manager of the driver's version, then start it"
                  if any("don't match" in line for line in details) else
                  "sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager -n 50")


@check("fabric.version", "the fabric manager is of the driver's version to the last digit", platform="nvidia",
       reads=("nvidia.fabricmanager_version", "nvidia.module"), source="the fabric manager refuses any other driver",
       remedy="install nvidia-fabricmanager of the driver's version", after=DRIVER)
def manager_version(view: View) -> Outcome:
    if not has_switch(view):
        return skipped("no NVSwitch on this host's bus")
    text = view.facts.answers.text("nvidia.fabricmanager_version")
    match = re.search(r"(\d+\.\d+(?:\.\d+)*)", text)
    if not match:
        raise Unread("nv-fabricmanager names no version")
    module = view.facts.module_version
    if match.group(1) != module:
        return failed(f"fabric manager {match.group(1)}, driver {module}", required=module, found=match.group(1))
    return passed(module)


@check("fabric.sxid", "no NVSwitch reported a fatal error", platform="nvidia", reads=("host.kernel_log",),
       source="imbue: fatal SXid is critical", remedy="reset all GPUs and NVSwitches: reboot")
def sxid(view: View) -> list[Outcome]:
    seen: dict[tuple[int, bool], list[str]] = {}
    for one in view.facts.kernel_log.sxids:
        seen.setdefault((one.code, one.fatal), []).append(f"{one.switch}: {one.text}")
    out = []
    for (code, fatal), lines in sorted(seen.items(), key=lambda item: not item[0][1]):
        text = f"SXid {code} {'fatal' if fatal else 'non-fatal'}" + (f", {len(lines)} times" if lines[1:] else "")
        out.append(failed(text, details=(lines[-1],)) if fatal else noted(text, details=(lines[-1],)))
    torn = [line for line in view.facts.kernel_log.torn if "sxid" in line.lower()]
    if torn:
        out.append(unknown("a line of the kernel log about an SXid cannot be read", details=(torn[-1],)))
    return out or [passed("none")]


@check("fabric.imex", "IMEX channels are there where NVLink spans hosts", platform="nvidia", reads=("host.modules",),
       source="GB200 and GB300 only", remedy="nvidia-imex-ctl -N")
def imex(view: View) -> Outcome:
    profile = view.profile
    if profile is None or not profile.name.startswith("gb"):
        return skipped("NVLink does not leave the host here")
    if "nvidia_caps_imex_channels" in view.facts.modules:
        return passed("channels")
    return warned("whether the IMEX daemon joins the hosts was not asked: nvidia-imex-ctl -N says")
