"""Ascend NPUs: cards, health, versions that go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.base.text import plural
from bringup.preflight.parsers import ascend as parse
from bringup.preflight.parsers.text import version
from bringup.preflight.registry import (
    Outcome,
    View,
    check,
    failed,
    fleet_check,
    noted,
    passed,
    skipped,
    unknown,
    warned,
)
from bringup.preflight.requirement import cann_table, limits
from bringup.preflight.unread import Unread

TOOL = ("ascend.tool",)


@check("ascend.tool", "npu-smi answers", platform="ascend", reads=("ascend.info",), source="msprechecker",
       remedy="install the driver, or mount npu-smi and its libraries into the container", absent="unknown")
def tool(view: View) -> Outcome:
    answer = view.facts.answers.get("ascend.info")
    if answer.missing:
        return failed("npu-smi is not there")
    text = (answer.stdout + answer.stderr).strip()
    if "-8020" in text:
        return failed("the NPUs are held by another container", details=(text.splitlines()[0],),
                      mend="end it: only privileged containers may share an NPU")
    if answer.timed_out or "initialize failed" in text or "no NPU card" in text:
        return failed(text.splitlines()[0] if text else "npu-smi did not answer before its deadline",
                      mend="look at dmesg; reinstall the driver when it names it")
    info = view.facts.npu
    if info.warnings:
        return warned(info.warnings[0], mend="reinstall the driver; /etc/ascend_install.info says whether it is whole")
    return passed(f"npu-smi {info.version}")


@check("ascend.count", "as many chips answer as stand on the PCI bus and as the plan needs", platform="ascend",
       reads=("ascend.info", "host.pci", "ascend.map"), source="hardware profile", absent="unknown", after=TOOL,
       remedy="power-cycle the host; when a chip stays away, replace it")
def count(view: View) -> Outcome:
    chips = len(view.facts.npu.chips)
    try:
        on_bus = len([d for d in view.facts.pci if d.vendor == "19e5" and d.device.startswith("d80")])
    except Unread as error:
        if not error.absent:
            raise
        on_bus = chips
    need = view.need.count
    if on_bus > chips:
        return failed(f"{on_bus} on the PCI bus, {chips} answer")
    try:
        mapped = len(parse.chip_map(view.facts.answers.text("ascend.map")))
    except Unread:
        mapped = chips
    if mapped > chips:
        return failed(f"npu-smi info -m knows {mapped} chips, npu-smi info shows {chips}")
    # chips of the 310 are of other kinds on the bus: none of ours is then no sign
    if 0 < on_bus < len({chip.bus for chip in view.facts.npu.chips if ":" in chip.bus}):
        return unknown(f"{chips} chips answer, the list of the PCI bus holds {on_bus}")
    if need and chips < need.number:
        return failed(f"{chips} chips, {need.number:.0f} are needed", source=need.source)
    return passed(f"{chips} chips")


@check("ascend.product", "the chips are of the plan's hardware, all alike", platform="ascend", reads=("ascend.info",),
       source="hardware profile", remedy="name the hardware that is there: deployment.hardware", after=TOOL)
def product(view: View) -> Outcome:
    names = sorted({chip.name for chip in view.facts.npu.chips})
    if len(names) > 1:
        return failed(f"different chips in one host: {', '.join(names)}")
    if view.need.profile and not view.need.profile.fits(names[0]):
        return failed(f"{names[0]}, the plan is for {view.need.hardware}")
    return passed(names[0])


@check("ascend.health", "every chip says OK", platform="ascend", reads=("ascend.info",),
       source="vllm-ascend: a node in Alarm does not serve", after=TOOL,
       remedy="npu-smi info -t health -i N: look the code up")
def health(view: View) -> list[Outcome]:
    out: list[Outcome] = []
    for chip in view.facts.npu.chips:
        if chip.health != "OK":
            make = unknown if chip.health.upper() in ("UNKNOWN", "NA") else failed
            out.append(make(f"NPU {chip.npu} chip {chip.chip}: {chip.health}",
                            mend=f"npu-smi info -t health -i {chip.npu}"))
    return out or [passed("OK")]


@check("ascend.memory", "each chip has the memory of its kind", platform="ascend", reads=("ascend.info",),
       source="hardware profile", after=TOOL, remedy="replace the card")
def memory(view: View) -> Outcome:
    profile = view.profile
    if profile is None or profile.memory is None:
        return skipped("no profile says how much")
    short = [chip for chip in view.facts.npu.chips if chip.memory_total is not None
             and chip.memory_total < profile.memory.number]
    if short:
        return failed(f"NPU {short[0].npu}: {short[0].memory_total} MB", required=f"{profile.memory.value} MB",
                      source=profile.memory.source)
    return passed(f"{view.facts.npu.chips[0].memory_total} MB each")


@check("ascend.processes", "no process but the running release's is on a chip", platform="ascend",
       reads=("ascend.info", "proc.processes"), source="gcm; memory of a dead server", after=TOOL,
       remedy="ask its owner; ours: invoke stop")
def processes(view: View) -> list[Outcome]:
    from bringup.preflight.checks.process import LEFTOVER, RUNNING, Owners

    owners = Owners(view)
    out: list[Outcome] = []
    held = set()
    for one in view.facts.npu.processes:
        kind = owners.of(one.pid)
        held.add((one.npu, one.chip))
        amount = f", {one.used} MB" if one.used else ""
        text = f"NPU {one.npu} chip {one.chip}{amount}: pid {owners.shown(one.pid, one.name)}"
        if kind == LEFTOVER:
            out.append(failed(f"left by an earlier start of ours: {text}", mend="invoke stop"))
        elif kind != RUNNING:
            out.append(failed(text, mend="ask its owner to end it; it is not ours to end"))
    idle = limits()["idle_memory_npu"]
    for chip in view.facts.npu.chips:
        if (chip.memory_used or 0) > idle.number and (chip.npu, chip.chip) not in held:
            out.append(failed(f"NPU {chip.npu} chip {chip.chip}: {chip.memory_used} MB in use by no listed process",
                              required=f"at most {idle}", source=idle.source))
    return out or [passed("none")]


@check("ascend.install", "the driver is installed whole", platform="ascend", reads=("ascend.install",),
       source="/etc/ascend_install.info", remedy="install the driver again")
def install(view: View) -> Outcome:
    text = view.facts.answers.file("ascend.install")
    if "Driver_Install_Status=complete" in text:
        return passed("complete")
    return warned("Driver_Install_Status is not `complete`")


@check("ascend.driver", "the driver is new enough", platform="ascend", reads=("ascend.driver",), source="msprechecker",
       remedy="install a newer driver and firmware")
def driver(view: View) -> Outcome:
    least = limits()["ascend_driver"]
    there = view.facts.npu_driver.version
    if version(there) < version(str(least.value)):
        return failed(there, required=f"{least.value} or newer", found=there, source=least.source)
    return passed(there)


@check("ascend.firmware", "firmware and driver go together", platform="ascend",
       reads=("ascend.driver", "ascend.firmware"), source="the ranges in their version.info",
       remedy="install driver and firmware of one package")
def firmware(view: View) -> Outcome:
    drv, fw = view.facts.npu_driver, view.facts.npu_firmware
    if parse.within(fw.version, drv.compatible) is False:
        return failed(f"firmware {fw.version}, driver {drv.version} goes with {drv.compatible}")
    if parse.within(drv.version, fw.compatible) is False:
        return warned(f"driver {drv.version}, firmware {fw.version} goes with {fw.compatible}")
    return passed(f"{fw.version} with {drv.version}")


@check("ascend.cann", "the driver is new enough for CANN", platform="ascend", reads=("ascend.cann", "ascend.driver"),
       source="table of releases that go together", remedy="a newer driver on the host, or an older CANN")
def cann(view: View) -> Outcome:
    there, drv = view.facts.cann.version, view.facts.npu_driver.version
    row = cann_table().get(".".join(there.split(".")[:2]))
    if row is None:
        return warned(f"CANN {there} is not in the table", found=f"driver {drv}")
    if version(drv) < version(str(row.value)):
        return failed(f"driver {drv} is too old for CANN {there}", required=f"driver {row.value} or newer",
                      source=row.source)
    return passed(f"CANN {there}, driver {drv}")


@check("ascend.torch", "torch_npu fits torch, and numpy is below 2", platform="ascend", reads=(),
       source="torch_npu releases: first two numbers equal", remedy="lock them together")
def torch(view: View) -> list[Outcome]:
    need = view.need
    out = []
    if need.torch and need.torch_npu and version(need.torch)[:2] != version(need.torch_npu)[:2]:
        out.append(failed(f"torch_npu {need.torch_npu} does not fit torch {need.torch}"))
    if need.torch_npu and version(need.numpy)[:1] > (1,) and version(need.torch_npu) < (2, 10):
        out.append(failed(f"numpy {need.numpy}: torch_npu {need.torch_npu} was built for numpy 1"))
    if out:
        return out
    return [passed(f"torch_npu {need.torch_npu}") if need.torch_npu else skipped("no environment names torch_npu")]


@check("ascend.device-files", "device files for every chip and the driver's own", platform="ascend",
       reads=("host.devices",), source="vllm-ascend, msprechecker", remedy="pass them into the container", after=TOOL)
def device_files(view: View) -> Outcome:
    paths = {line.split(" ", 3)[-1] for line in view.facts.answers.text("host.devices").splitlines()}
    chips = sum(1 for path in paths if path.removeprefix("/dev/davinci").isdecimal())
    gone = [path for path in ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc") if path not in paths]
    if chips < len(view.facts.npu.chips):
        gone.append(f"{len(view.facts.npu.chips) - chips} of /dev/davinciN")
    return failed(f"missing: {', '.join(gone)}") if gone else passed(f"{chips}")


_MOUNTS = ("/usr/local/dcmi", "npu-smi", "/usr/local/Ascend/driver/lib64", "/usr/local/Ascend/driver/version.info",
           "/etc/ascend_install.info")
"""What a container of CANN needs of the host beside device files."""


@check("ascend.mounts", "what a container needs of the driver is on the host", platform="ascend",
       reads=("ascend.paths",), source="vllm-ascend: mounts of its container",
       remedy="install the driver whole")
def mounts(view: View) -> Outcome:
    if view.need.manager not in ("docker", "podman"):
        return skipped(f"the manager is {view.need.manager or 'not docker'}")
    there = view.facts.answers.text("ascend.paths").splitlines()
    network = ("/etc/hccn.conf", "/usr/local/Ascend/driver/tools/hccn_tool") if view.need.multi_node else ()
    wanted = (*_MOUNTS, *network)
    gone = [path for path in wanted if not any(line.strip().endswith(path) for line in there)]
    return failed(f"missing: {', '.join(gone)}") if gone else passed(f"{len(wanted)}")


@check("ascend.kernel", "the kernel is as new as the driver's makers ask", platform="ascend", reads=("host.kernel",),
       source="msprechecker", remedy="a kernel of 5.10 or newer at the next installation")
def kernel(view: View) -> Outcome:
    least = limits()["ascend_kernel"]
    there = view.facts.kernel
    if not version(there):
        raise Unread(f"the kernel's release reads `{there[:40]}`")
    if version(there)[:2] < version(str(least.value)):
        return noted(f"{there}; {least} or newer is asked for", source=least.source)
    return passed(there)


@check("ascend.ecc", "no double-bit error in a chip's memory", platform="ascend", reads=("ascend.ecc",),
       source="npu-smi info -t ecc: 0 double-bit errors", after=TOOL,
       remedy="stop what runs there and reset the chip; when it comes back, replace the card")
def ecc(view: View) -> list[Outcome]:
    out: list[Outcome] = []
    for number, text in sorted(view.facts.npus("ascend.ecc").items()):
        counts = parse.ecc(text)
        broken = sum(counts.get(f"{kind} Double Bit Error Count", 0) for kind in ("HBM", "DDR"))
        isolated = sum(counts.get(f"{kind} Double Bit Isolated Pages Count", 0) for kind in ("HBM", "DDR"))
        if broken:
            out.append(failed(f"NPU {number}: {plural(broken, 'double-bit error')} since the driver was loaded",
                              required="0", found=str(broken)))
        elif isolated:
            out.append(noted(f"NPU {number}: {plural(isolated, 'page')} taken out after double-bit errors, none since",
                             mend="replace the card when the number grows"))
    return out or [passed("0")]


@check("ascend.faults", "no fault is under way on a 950", platform="ascend", reads=("ascend.current-fault-event",),
       source="npu-smi info -t current-fault-event: count 0", after=TOOL,
       remedy="look the event id up in the fault catalogue of the driver")
def faults(view: View) -> list[Outcome]:
    if view.profile is None or view.profile.name != "ascend-950":
        return [skipped("only the 950 lists them")]
    out: list[Outcome] = []
    for number, one in sorted(view.facts.npus("ascend.current-fault-event").items()):
        events, said = parse.fault_events(one)
        if events:
            out.append(failed(f"NPU {number}: {plural(events, 'fault event')}", details=said, required="0",
                              found=str(events)))
    return out or [passed("none")]


@check("ascend.board", "the tool says that driver and firmware go together", platform="ascend",
       reads=("ascend.board",), source="npu-smi info -t board: Compatibility", after=TOOL,
       remedy="install driver and firmware of one package")
def board(view: View) -> list[Outcome]:
    said = {number: parse.compatibility(text) for number, text in
            sorted(view.facts.npus("ascend.board").items())}
    if all(word.startswith("NOT SUPPORT") for word in said.values()):
        return [skipped("npu-smi says it to root only")]
    out: list[Outcome] = []
    for number, word in said.items():
        if word != "OK":
            make = failed if word == "NOK" else unknown
            out.append(make(f"NPU {number}: {word}"))
    return out or [passed("OK")]


@fleet_check("ascend.superpod", "the hosts of a replica are of one super pod", platform="ascend",
             reads=("ascend.spod",), source="A3: the plane between hosts", remedy="plan replicas within a super pod")
def superpod(views: Sequence[View]) -> Iterable[Outcome]:
    seen = {}
    for view in views:
        try:
            seen[view.host] = parse.super_pod(view.facts.answers.text("ascend.spod", any_status=True))
        except Unread:
            continue
    for view in views:
        if view.host not in seen:
            continue
        mates = [host for host in view.need.nodes if host in seen and seen[host] != seen[view.host]]
        if mates:
            yield failed(f"super pod {seen[view.host]}, {mates[0]} is in {seen[mates[0]]}", subject=view.host)
        else:
            yield passed(seen[view.host], subject=view.host)
