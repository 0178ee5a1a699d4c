"""Ascend NPUs: cards, health, versions that go together, and their own network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.preflight.parsers import ascend as parse
from bringup.preflight.parsers.text import version
from bringup.preflight.registry import (
    Outcome,
    View,
    check,
    failed,
    fleet_check,
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
       reads=("ascend.info", "host.pci"), source="hardware profile", absent="unknown", after=TOOL,
       remedy="power-cycle the host; when a chip stays away, replace it")
def count(view: View) -> Outcome:
    chips = len(view.facts.npu.chips)
    try:
        on_bus = len([d for d in view.facts.pci if d.vendor == "19e5" and d.device.startswith("d80")])
    except Unread:
        on_bus = 0
    need = view.need.count
    if on_bus > chips:
        return failed(f"{on_bus} on the PCI bus, {chips} answer")
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
    chips = sum(1 for path in paths if path.removeprefix("/dev/davinci").isdigit())
    gone = [path for path in ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc") if path not in paths]
    if chips < len(view.facts.npu.chips):
        gone.append(f"{len(view.facts.npu.chips) - chips} of /dev/davinciN")
    return failed(f"missing: {', '.join(gone)}") if gone else passed(f"{chips}")


@check("hccn.address", "/etc/hccn.conf says of each chip what the chip says", platform="ascend",
       reads=("hccn.ip", "ascend.hccn_conf"), source="one stale line makes one chip unreachable",
       remedy="hccn_tool -i N -ip -s address A netmask M writes both")
def address(view: View) -> list[Outcome]:
    chips = {number: parse.address(text) for number, text in view.facts.hccn("ip").items()}
    out = []
    try:
        conf = view.facts.hccn_conf
    except Unread as error:
        if not error.absent:
            raise
        out.append(failed("there is no /etc/hccn.conf: the addresses go at the next reboot"))
        conf = {}
    for number, there in sorted(chips.items()):
        said, line = conf.get(number, ("", 0))
        if not there:
            where = f" (/etc/hccn.conf:{line} says {said})" if said else ""
            out.append(failed(f"chip {number} has no address{where}"))
        elif said and said != there:
            out.append(failed(f"chip {number}: /etc/hccn.conf:{line} says {said}, the chip says {there}"))
        elif conf and not said:
            out.append(failed(f"chip {number} has {there}, /etc/hccn.conf has no line for it"))
    return out or [passed(f"{len(chips)} chips")]


@fleet_check("hccn.unique", "no two chips of the run have one address", platform="ascend", reads=("hccn.ip",),
             source="an address used twice answers for the wrong chip", remedy="give each chip its own address")
def unique(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, list[tuple[str, int]]] = {}
    for view in views:
        try:
            for number, text in view.facts.hccn("ip").items():
                there = parse.address(text)
                if there:
                    seen.setdefault(there, []).append((view.host, number))
        except Unread:
            continue
    twice = {there: where for there, where in seen.items() if len(where) > 1}
    for there, where in twice.items():
        for host, number in where[1:]:
            first = where[0]
            yield failed(f"chip {number} has {there}, as {first[0]} chip {first[1]}", subject=host)
    for host in sorted({host for where in seen.values() for host, _ in where}):
        if not any(host == other for where in twice.values() for other, _ in where[1:]):
            yield passed("own addresses", subject=host)


@check("hccn.link", "the network port of every chip is up", platform="ascend", reads=("hccn.link",),
       source="msprechecker, vllm-ascend", remedy="hccn_tool -i N -optical -g: look at cable and optics")
def link(view: View) -> list[Outcome]:
    out = [failed(f"chip {number}: link {state}") for number, text in sorted(view.facts.hccn("link").items())
           if (state := parse.link(text)) != "UP"]
    return out or [passed("UP")]


@check("hccn.health", "every chip reaches its detect address", platform="ascend", reads=("hccn.net_health",),
       source="vllm-ascend: Success", remedy="hccn_tool -i N -netdetect -s address GATEWAY", after=("hccn.link",))
def net_health(view: View) -> list[Outcome]:
    out: list[Outcome] = []
    for number, text in sorted(view.facts.hccn("net_health").items()):
        state = parse.net_health(text)
        if state == "Init":
            out.append(warned(f"chip {number}: Init: no detect address is set"))
        elif state != "Success":
            out.append(failed(f"chip {number}: {state}"))
    return out or [passed("Success")]


@fleet_check("hccn.tls", "the TLS switch of all chips of the run is equal", platform="ascend", reads=("hccn.tls",),
             source="mixed switches end in EI0006, link establish timeout", remedy="hccn_tool -i N -tls -s enable 0")
def tls(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[int, int]] = {}
    for view in views:
        try:
            seen[view.host] = {number: parse.tls(text) for number, text in view.facts.hccn("tls").items()}
        except Unread as error:
            if not error.absent:
                yield unknown(error.reason, subject=view.host)
    values = [value for chips in seen.values() for value in chips.values()]
    if not values:
        return
    usual = max(sorted(set(values)), key=values.count)
    for host, chips in seen.items():
        odd = [number for number, value in chips.items() if value != usual]
        if odd:
            listed = ", ".join(str(number) for number in odd)
            yield failed(f"chip {listed}: {1 - usual}, all others {usual}", subject=host,
                         mend=f"for i in {' '.join(map(str, odd))}; do hccn_tool -i $i -tls -s enable {usual}; done")
        else:
            yield passed(f"all {usual}", subject=host)


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


@fleet_check("hccl.env", "the HCCL variables are equal on all hosts", platform="ascend", reads=(),
             source="a timeout raised on one host only does not help", remedy="set it for all hosts at once")
def environment(views: Sequence[View]) -> Iterable[Outcome]:
    names = sorted({name for view in views for name in view.need.env
                    if name.startswith("HCCL_") and not name.endswith(("IF_IP", "IFNAME"))})
    for name in names:
        seen = {view.host: view.need.env.get(name, "not set") for view in views}
        values = list(seen.values())
        if len(set(values)) > 1:
            usual = max(sorted(set(values)), key=values.count)
            for host, value in seen.items():
                if value != usual or values.count(usual) * 2 == len(values):
                    other = ", ".join(sorted(set(values) - {value}))
                    yield failed(f"{name} is {value}, elsewhere {other}", subject=host)
            continue
        for view in views:
            yield passed(f"{name}={values[0]}", subject=view.host)
