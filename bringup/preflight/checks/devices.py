"""NVIDIA devices: how many, which, whole, cool, at their power and clocks; Xid of the kernel log."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.preflight.checks.driver import DRIVER
from bringup.preflight.parsers.kernel import Xid
from bringup.preflight.parsers.nvidia_text import busy
from bringup.preflight.parsers.text import bus
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, unknown, warned
from bringup.preflight.requirement import limits, xids
from bringup.preflight.unread import Unread


def gpus(indexes: Iterable[int]) -> str:
    """`GPU 0-3, 5`."""
    return f"GPU {busy([str(index) for index in indexes])}"


def on_bus(view: View) -> list[str] | None:
    """PCI addresses of the NVIDIA accelerators, None where the bus cannot be read."""
    try:
        return [d.bus for d in view.facts.pci if d.vendor == "10de" and d.kind in ("0302", "0300")]
    except Unread:
        return None


@check("nvidia.count", "as many GPUs answer as stand on the PCI bus and as the plan needs", platform="nvidia",
       reads=("nvidia.q", "host.pci"), source="hardware profile; PCI against NVML", absent="unknown", after=DRIVER,
       remedy="power-cycle the host; when a GPU stays away, replace it")
def count(view: View) -> Outcome:
    log = view.facts.smi
    there = on_bus(view)
    names = {gpu.bus for gpu in log.gpus if gpu.memory_total is not None or gpu.name}
    need = view.need.count
    want = f"{need.number:.0f} ({need.source})" if need else None
    if there is not None and set(there) - names:
        dead = sorted(set(there) - names)
        return failed(f"{len(there)} GPUs on the PCI bus, {len(names)} answer: {', '.join(dead)} is dead",
                      details=tuple(log.troubles[:3]), required=want, found=str(len(names)))
    if there and names - set(there):
        return failed(f"{', '.join(sorted(names - set(there)))} has fallen off the bus", required=want,
                      found=str(len(there)), details=tuple(log.troubles[:3]))
    if log.troubles or log.attached != len(log.gpus):
        return failed(log.troubles[0] if log.troubles else f"{log.attached} GPUs are announced, {len(log.gpus)} listed",
                      required=want, found=str(len(log.gpus)))
    if need and len(names) < need.number:
        return failed(f"{len(names)} GPUs, {need.number:.0f} are needed", required=want, found=str(len(names)),
                      source=need.source)
    return passed(f"{len(names)} GPUs")


@check("nvidia.product", "the GPUs are of the plan's hardware, all alike", platform="nvidia", reads=("nvidia.q",),
       source="hardware profile", remedy="name the hardware that is there: deployment.hardware", after=DRIVER)
def product(view: View) -> Outcome:
    names = sorted({gpu.name for gpu in view.facts.smi.gpus if gpu.name})
    if len(names) > 1:
        return failed(f"different GPUs in one host: {', '.join(names)}")
    if not names:
        raise Unread("no GPU says its name")
    if view.need.profile and not view.need.profile.fits(names[0]):
        return failed(f"{names[0]}, the plan is for {view.need.hardware}", required=view.need.hardware, found=names[0])
    return passed(names[0])


@check("nvidia.memory", "each GPU has the memory of its kind", platform="nvidia", reads=("nvidia.q",),
       source="hardware profile", remedy="reset the GPU; replace it when memory stays missing", after=DRIVER)
def memory(view: View) -> Outcome:
    profile = view.profile
    log = view.facts.smi
    sizes = {gpu.index: gpu.memory_total for gpu in log.gpus}
    missing = [index for index, size in sizes.items() if size is None]
    if missing and any(gpu.unreadable for gpu in log.gpus):
        return unknown(f"{gpus(missing)} does not say its memory")
    if profile is None or profile.memory is None:
        return skipped("no profile says how much these GPUs must have")
    short = [index for index, size in sizes.items() if size is not None and size < profile.memory.number]
    if short:
        return failed(f"{gpus(short)}: {sizes[short[0]]} MiB", required=f"{profile.memory.value} MiB",
                      source=profile.memory.source)
    return passed(f"{min(size for size in sizes.values() if size is not None)} MiB each" if not missing else "unified")


@check("nvidia.readable", "every GPU answers every field", platform="nvidia", reads=("nvidia.q",),
       source="gpustack: a check that cannot read its source is no pass", after=DRIVER,
       remedy="reset the GPU (sudo nvidia-smi -r -i N), reboot when that fails")
def readable(view: View) -> Outcome:
    odd = [gpu for gpu in view.facts.smi.gpus if gpu.unreadable]
    if odd:
        return failed(f"{gpus(gpu.index for gpu in odd)} answers with errors ({', '.join(odd[0].unreadable[:3])})")
    return passed("all fields")


@check("nvidia.recovery", "no GPU asks for a reset or a reboot", platform="nvidia", reads=("nvidia.q",),
       source="GPU Recovery Action of the driver", after=DRIVER, remedy="do what the driver asks for")
def recovery(view: View) -> Outcome:
    asked = [gpu for gpu in view.facts.smi.gpus if gpu.recovery not in ("", "None")]
    if asked:
        return failed(f"{gpus(gpu.index for gpu in asked)}: the driver asks for `{asked[0].recovery}`",
                      mend="sudo reboot" if "eboot" in asked[0].recovery else
                      f"sudo nvidia-smi -r -i {','.join(str(gpu.index) for gpu in asked)}")
    if all(gpu.recovery == "" for gpu in view.facts.smi.gpus):
        return skipped("this driver has no such field")
    return passed("none")


@check("nvidia.device-files", "a device file for each GPU, nvidiactl and nvidia-uvm", platform="nvidia",
       reads=("host.devices",), source="CUDA opens them; a container has only those that it was given", after=DRIVER,
       remedy="sudo nvidia-modprobe -u -c=0")
def device_files(view: View) -> Outcome:
    paths = {line.split(" ", 3)[3] for line in view.facts.answers.text("host.devices").splitlines()
             if len(line.split(" ", 3)) == 4}
    need = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    minors = sum(1 for path in paths if path.removeprefix("/dev/nvidia").isdecimal())
    gone = [path for path in need if path not in paths]
    if minors < len(view.facts.smi.gpus):
        gone.append(f"{len(view.facts.smi.gpus) - minors} of /dev/nvidia0..{len(view.facts.smi.gpus) - 1}")
    if gone:
        return failed(f"missing: {', '.join(gone)}")
    return passed(f"{minors} and the two of the driver")


@check("nvidia.throttle", "no GPU is slowed down by heat, power or its board", platform="nvidia", reads=("nvidia.q",),
       source="clocks event reasons: idle and the power cap are normal", after=DRIVER,
       remedy="look at cooling and power supplies")
def throttle(view: View) -> Outcome:
    slow = [gpu for gpu in view.facts.smi.gpus if gpu.slowdown]
    if slow:
        reasons = sorted({reason for gpu in slow for reason in gpu.slowdown})
        return failed(f"{gpus(gpu.index for gpu in slow)}: {', '.join(reasons)}")
    return passed("none")


@check("nvidia.temperature", "every GPU is below its limit", platform="nvidia", reads=("nvidia.q",),
       source="T.Limit: 0 or below is throttling", after=DRIVER, remedy="look at cooling")
def temperature(view: View) -> Outcome:
    hot = [gpu for gpu in view.facts.smi.gpus if gpu.temperature_margin is not None and gpu.temperature_margin <= 0]
    if hot:
        return failed(f"{gpus(gpu.index for gpu in hot)} at {hot[0].temperature:.0f} C: no margin left")
    seen = [gpu.temperature for gpu in view.facts.smi.gpus if gpu.temperature is not None]
    return passed(f"up to {max(seen):.0f} C") if seen else skipped("not said")


@check("nvidia.power", "power limits stand at their default", platform="nvidia", reads=("nvidia.q",),
       source="hardware profile and the device's own default", after=DRIVER,
       remedy="sudo nvidia-smi -pl DEFAULT_WATTS")
def power(view: View) -> Outcome:
    low = [gpu for gpu in view.facts.smi.gpus
           if gpu.power_limit is not None and gpu.power_default is not None and gpu.power_limit < gpu.power_default]
    if low:
        return warned(f"{gpus(gpu.index for gpu in low)} limited to {low[0].power_limit:.0f} W of "
                      f"{low[0].power_default:.0f} W", mend=f"sudo nvidia-smi -pl {low[0].power_default:.0f}")
    return passed("default")


@check("nvidia.vbios", "all GPUs of a host have one VBIOS", platform="nvidia", reads=("nvidia.q",),
       source="imbue, gcm: one value", after=DRIVER, remedy="update the firmware of the odd GPU")
def vbios(view: View) -> Outcome:
    seen: dict[str, list[int]] = {}
    for gpu in view.facts.smi.gpus:
        if gpu.vbios:
            seen.setdefault(gpu.vbios, []).append(gpu.index)
    if len(seen) > 1:
        usual = max(seen, key=lambda value: len(seen[value]))
        odd = "; ".join(f"{gpus(which)}: {value}" for value, which in seen.items() if value != usual)
        return warned(f"{odd} (the others: {usual})")
    return passed(next(iter(seen), "not said"))


@check("nvidia.xid", "the kernel log holds no Xid that needs hands", platform="nvidia",
       reads=("host.kernel_log", "host.uptime"), source="the vendor's Xid catalogue as fleets read it",
       remedy="by code: see invoke checks and the finding")
def xid(view: View) -> list[Outcome]:
    log = view.facts.kernel_log
    try:
        uptime: float | None = view.facts.uptime
    except Unread:
        uptime = None
    index = {}
    try:
        index = {gpu.bus: gpu.index for gpu in view.facts.smi.gpus}
    except Unread:
        pass
    groups: dict[tuple[int, str], list[Xid]] = {}
    for one in log.xids:
        groups.setdefault((one.code, one.bus), []).append(one)
    out = []
    for (code, address), seen in sorted(groups.items()):
        out.append(_judge_xid(code, f"GPU {index[address]}" if address in index else f"PCI {address}", seen, uptime))
    torn = [line for line in log.torn if "sxid" not in line.lower()]
    if torn:
        out.append(unknown("a line of the kernel log about an Xid cannot be read", details=(torn[-1],)))
    return out or [passed("none")]


def _judge_xid(code: int, where: str, seen: list[Xid], uptime: float | None) -> Outcome:
    known = xids().get(code)
    last = seen[-1]
    ago = uptime - last.at if uptime is not None and last.at is not None else None
    when = f", last {ago / 3600:.1f} h ago" if ago is not None and ago >= 0 else ""
    times = f" {len(seen)} times" if len(seen) > 1 else ""
    if known is None:
        return warned(f"{where}: Xid {code}{times}{when} (not in the table)", details=(last.text,),
                      mend="look it up in the vendor's Xid catalogue")
    summary = f"{where}: Xid {code}{times}{when}: {known.means}"
    details = (last.text,) if last.text else ()
    if known.verdict == "note":
        return noted(summary, mend=known.action)
    recent = ago is None or ago <= limits()["xid_recent"].number
    if known.verdict == "fail" and recent:
        return failed(summary, details=details, mend=known.action)
    return warned(summary, details=details, mend=known.action)


@check("nvidia.segfault", "no crash in the communication library", platform="nvidia", reads=("host.kernel_log",),
       source="imbue: a segfault in libnccl", remedy="the environment's NCCL is broken or mixed: verify it")
def segfault(view: View) -> Outcome:
    seen = view.facts.kernel_log.segfaults
    return warned(f"{len(seen)} segfaults in libnccl", details=(seen[-1],)) if seen else passed("none")


def by_bus(view: View, address: str) -> str:
    """`GPU 3` for a PCI address that nvidia-smi lists, else the address."""
    try:
        return next((f"GPU {gpu.index}" for gpu in view.facts.smi.gpus if gpu.bus == bus(address)), address)
    except Unread:
        return address
