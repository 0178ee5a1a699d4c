"""AMD GPUs: the tool answers, how many, which, nothing on them."""

from __future__ import annotations

from bringup.base.text import plural
from bringup.preflight.parsers import amd
from bringup.preflight.parsers.text import version as numbers
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, unknown, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread


def _gpus(view: View) -> tuple[amd.AmdGpu, ...]:
    """The devices by rocm-smi, by amd-smi where a newer ROCm has no other tool. Raises Unread."""
    probe = "amd.static" if view.facts.answers.get("amd.smi").missing else "amd.smi"
    return amd.smi(view.facts.answers.text(probe, any_status=True))


@check("amd.tool", "rocm-smi or amd-smi answers", platform="amd", reads=("amd.smi", "amd.static"),
       source="gpustack", absent="unknown",
       remedy="install ROCm, or add the account to the groups video and render")
def tool(view: View) -> Outcome:
    if all(view.facts.answers.get(probe).missing for probe in ("amd.smi", "amd.static")):
        return failed("neither rocm-smi nor amd-smi is there")
    return passed(f"{len(_gpus(view))} devices")


@check("amd.count", "as many GPUs answer as the plan needs", platform="amd",
       reads=("amd.smi", "amd.static", "host.pci"), source="hardware profile", after=("amd.tool",),
       remedy="power-cycle the host")
def count(view: View) -> Outcome:
    there = len(_gpus(view))
    need = view.need.count
    try:
        on_bus: int | None = len([d for d in view.facts.pci if d.vendor == "1002" and d.kind[:2] in ("12", "03")])
    except Unread as error:
        if not error.absent:
            raise
        on_bus = None
    if on_bus is not None and on_bus > there:
        return failed(f"{on_bus} on the PCI bus, {there} answer")
    if on_bus is not None and on_bus < there:
        return unknown(f"{there} answer, the list of the PCI bus holds {on_bus}")
    if need and there < need.number:
        return failed(f"{there} GPUs, {need.number:.0f} are needed", source=need.source)
    return passed(f"{there} GPUs")


@check("amd.product", "the GPUs are of the plan's hardware, all alike", platform="amd", reads=("amd.smi", "amd.static"),
       source="hardware profile", after=("amd.tool",), remedy="name the hardware that is there")
def product(view: View) -> Outcome:
    seen = sorted({f"{gpu.name} {gpu.device}".strip() for gpu in _gpus(view)})
    if len(seen) > 1:
        return failed(f"different GPUs in one host: {', '.join(seen)}")
    if view.need.profile and not view.need.profile.fits(seen[0]):
        return failed(f"{seen[0]}, the plan is for {view.need.hardware}")
    return passed(seen[0])


@check("amd.memory", "no device memory is used before a start", platform="amd", reads=("amd.smi", "amd.static"),
       source="0 % when idle", after=("amd.tool",), remedy="rocm-smi --showpids")
def used(view: View) -> Outcome:
    gpus = _gpus(view)
    if all(gpu.memory_percent is None for gpu in gpus) and view.facts.answers.get("amd.smi").missing:
        return skipped("amd-smi static does not show it, and there is no rocm-smi")
    unread = [str(gpu.index) for gpu in gpus if gpu.memory_percent is None]
    if unread:
        return unknown(f"GPU {', '.join(unread)}: rocm-smi does not say how much is used")
    full = [gpu for gpu in gpus if (gpu.memory_percent or 0) > 2]
    if full:
        return warned(f"GPU {', '.join(str(gpu.index) for gpu in full)}: {full[0].memory_percent} % in use")
    return passed("none")


@check("amd.driver", "the amdgpu module is loaded", platform="amd", reads=("host.modules", "amd.version"),
       source="ROCm: the kernel's driver", remedy="sudo modprobe amdgpu; dmesg says why it does not load",
       absent="unknown")
def driver(view: View) -> Outcome:
    try:
        version = view.facts.answers.file("amd.version", "amdgpu/version").strip()
    except Unread:
        version = ""
    if not version and "amdgpu" not in view.facts.modules:
        try:
            _gpus(view)  # a kernel that has the driver built in lists no module
        except Unread:
            return failed("the amdgpu module is not loaded")
    return passed(f"amdgpu {version or 'of the kernel'}")


@check("amd.links", "every pair of GPUs is joined by xGMI", platform="amd", reads=("amd.links",),
       source="MI300X and later: each GPU is linked to every other", after=("amd.tool",),
       remedy="reseat the board; amd-smi xgmi shows each link")
def links(view: View) -> Outcome:
    gpus = len(_gpus(view))
    if gpus < 2:
        return skipped("one GPU has no peer")
    found = amd.links(view.facts.answers.text("amd.links"))
    if len(found) < gpus * (gpus - 1) // 2:
        return unknown(f"rocm-smi names {len(found)} of {gpus * (gpus - 1) // 2} links")
    odd = [f"{a}-{b} {kind}" for (a, b), kind in sorted(found.items()) if kind != "XGMI"]
    if odd:
        # cards without xGMI bridges are as they are; the boards of the profiles have all links
        make = failed if view.profile is not None else noted
        return make(f"{len(odd)} of {len(found)} pairs: {', '.join(odd[:4])}", required="XGMI")
    return passed(f"{len(found)} pairs")


@check("amd.health", "the kernel reports no error of a GPU", platform="amd", reads=("host.kernel_log",),
       source="amdgpu: uncorrectable errors, resets and time-outs", remedy="replace the GPU when it comes back")
def health(view: View) -> Outcome:
    seen = view.facts.kernel_log.amdgpu
    if seen:
        return failed(f"{plural(len(seen), 'line')} of amdgpu about errors since boot", details=(seen[-1],))
    return passed("none")


@check("amd.ecc", "no uncorrectable error since the driver was loaded", platform="amd", reads=("amd.ras",),
       source="amdgpu's RAS counts in sysfs: ue 0",
       remedy="reset the GPU when no job runs; replace it when they come back")
def ecc(view: View) -> list[Outcome]:
    counts = amd.ras(view.facts.answers.files("amd.ras"))
    out = [failed(f"{card}: {plural(worse, 'uncorrectable error')}") for card, (worse, _) in counts.items() if worse]
    mild = sum(mild for _, mild in counts.values())
    return out or [passed(f"0 on {plural(len(counts), 'card')}, {mild:,} corrected")]


@check("amd.rocm", "ROCm is as new as serving engines ask", platform="amd", reads=("amd.version",),
       source="GPUStack: ROCm 7.0 or newer",
       remedy="install the newer ROCm, or serve out of a container that brings it")
def rocm(view: View) -> Outcome:
    least = limits()["rocm"]
    there = view.facts.answers.file("amd.version", ".info/version").strip()
    if not numbers(there):
        raise Unread(f"ROCm's version reads `{there[:40]}`")
    if numbers(there) < numbers(str(least.value)):
        return noted(f"{there}; {least} or newer is asked for", source=least.source)
    return passed(there)
