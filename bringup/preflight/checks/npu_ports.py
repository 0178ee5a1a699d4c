"""The ports of NPUs from the wire: optics, errors, neighbours, FEC, the plane of a super pod; what ranks are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.base.text import plural
from bringup.preflight.checks.hccn import BY_UB, broken, is_ub
from bringup.preflight.parsers import ascend, npu, optics
from bringup.preflight.parsers.neighbours import npu as npu_neighbour
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
from bringup.preflight.unread import Unread

TOOL = ("ascend.tool", "hccn.link")
CABLE = "clean or replace cable and module; look at the switch's side: hccn_tool -i N -lldp -g names it"


def _asked(view: View, name: str) -> dict[int, str]:
    """Each chip's answer. Raises Unread, absent where the probe was not asked of this host."""
    if view.facts.answers.get(f"hccn.{name}").missing:
        raise Unread(f"hccn_tool was not asked for {name}", absent=True)
    return dict(sorted(view.facts.hccn(name).items()))


def _state(view: View, number: int) -> str:
    try:
        return ascend.link(view.facts.hccn("link").get(number, ""))
    except Unread:
        return ""


@check("hccn.optics", "the modules of the chips' ports stay within their own limits", platform="ascend",
       reads=("hccn.optical",), source="faultdiag: power within the printed thresholds, flags 0x0, SNR of 8 dB",
       after=("ascend.tool",), remedy=CABLE)
def optical(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    out: list[Outcome] = []
    seen = 0
    for number, text in _asked(view, "optical").items():
        try:
            module = optics.hccn_optical(text)
        except Unread as error:
            if not error.absent:
                raise
            continue
        seen += 1
        if module.troubles:
            said = f"chip {number}: {'; '.join(module.troubles[:3])}"
            # where the link runs, the light suffices today
            out.append(warned(said) if _state(view, number) == "UP" else broken(view, said))
    return out or [passed(plural(seen, "module")) if seen else skipped("no port measures light")]


@check("hccn.errors", "no chip counts broken packets", platform="ascend", reads=("hccn.stat",),
       source="msprechecker, faultdiag: roce_rx_err_pkt_num 0", after=TOOL, remedy=CABLE)
def errors(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    out: list[Outcome] = []
    for number, text in _asked(view, "stat").items():
        counts = npu.counters(text)
        odd = {name: counts.get(name, 0) for name in ("roce_rx_err_pkt_num", "roce_tx_err_pkt_num",
                                                      "mac_rx_fcs_err_pkt_num") if counts.get(name)}
        again = counts.get("roce_new_pkt_rty_num", 0)
        if odd:
            out.append(warned(f"chip {number}: " + ", ".join(f"{name} {count:,}" for name, count in odd.items())))
        elif again:
            out.append(noted(f"chip {number}: {again:,} packets were sent again since the driver was loaded"))
    return out or [passed("0")]


@check("hccn.neighbour", "all ports of a host end at the same kind of neighbour", platform="ascend",
       reads=("hccn.lldp",), source="msprechecker: AscendNPU is a direct fibre, Routing a switch", after=TOOL,
       remedy="look at the cables of the chips that differ; LLDP must be on at the switch")
def neighbour(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    kinds: dict[int, str] = {}
    silent: list[int] = []
    for number, text in _asked(view, "lldp").items():
        try:
            found = npu_neighbour(text)
        except Unread as error:
            if not error.absent:
                raise
            silent.append(number)
            continue
        kinds[number] = "another NPU" if "AscendNPU" in found.description else f"switch {found.system}"
    if not kinds:
        return [skipped("no port hears a neighbour")]
    out = [noted(f"chip {number} hears no neighbour, {len(kinds)} others do") for number in silent]
    direct = [number for number, kind in kinds.items() if kind == "another NPU"]
    if direct and len(direct) < len(kinds):
        listed = ", ".join(str(number) for number in direct)
        out.append(warned(f"chip {listed}: by a fibre to another NPU, the others by a switch"))
    names = sorted(set(kinds.values()))
    return out or [passed(", ".join(names[:4]))]


@fleet_check("hccn.fec", "speed and FEC of all chips of the run are equal", platform="ascend",
             reads=("hccn.fec", "hccn.speed"), source="faultdiag: both sides of a link and all ranks alike",
             remedy="hccn_tool -i N -fec -s, -generic -s; the switch's port must be set alike")
def fec(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[int, str]] = {}
    for view in views:
        if is_ub(view):
            continue
        try:
            modes = {number: npu.fec(text) for number, text in _asked(view, "fec").items()}
            speeds = {number: npu.speed(text) for number, text in _asked(view, "speed").items()}
        except Unread as error:
            if not error.absent:
                yield unknown(error.reason, subject=view.host)
            continue
        seen[view.host] = {number: f"{speeds.get(number, 0) // 1000} Gb/s, FEC {mode}"
                           for number, mode in modes.items()}
    values = [value for chips in seen.values() for value in chips.values()]
    usual = max(sorted(set(values)), key=values.count, default="")
    for host, chips in seen.items():
        odd = {number: value for number, value in chips.items() if value != usual}
        if odd:
            listed = "; ".join(f"chip {number}: {value}" for number, value in list(odd.items())[:4])
            yield warned(f"{listed}; all others: {usual}", subject=host)
        else:
            yield passed(usual, subject=host)


@check("hccn.plane", "every chip of an A3 is up on the plane of its super pod", platform="ascend", reads=("hccn.vnic",),
       source="vllm-ascend, msprechecker: hccn_tool -vnic -g", after=TOOL,
       remedy="npu-smi info -t spod-info; restart the driver of that host when no job runs")
def plane(view: View) -> list[Outcome]:
    if view.profile is None or view.profile.name != "ascend-a3":
        return [skipped("only an A3 has that plane")]
    out: list[Outcome] = []
    for number, text in _asked(view, "vnic").items():
        found = npu.plane(text)
        if found.state != "UP":
            out.append(broken(view, f"chip {number}: {found.state}"))
        elif not found.address:
            out.append(broken(view, f"chip {number} has no address on the plane"))
    return out or [passed("UP")]


@check("hccn.ping", "the chips of a replica's hosts reach each other", platform="ascend", tier="deep",
       reads=("hccn.ping",), source="msprechecker: 3 of 3 packets; a ping that fails may still end with 0",
       remedy="hccn_tool -i N -ip -g, -gateway -g and -netdetect -g on both hosts; then the switch between them")
def ping(view: View) -> list[Outcome]:
    found = view.facts.npu_pings
    out = []
    for one in found:
        if one.received < one.sent or not one.sent:
            by = ", by the plane of the super pod" if one.plane else ""
            out.append(failed(f"chip {one.chip} to {one.host} ({one.address}{by}): "
                              f"{one.received} of {one.sent} packets"))
    return out or [passed(plural(len(found), "way"))]


@check("ascend.topology", "every chip meets as many others over fast links as its neighbours do", platform="ascend",
       reads=("ascend.topo",), source="npu-smi info -t topo: HCCS, SIO or UB within a group", after=("ascend.tool",),
       remedy="power-cycle the host; when a link stays away, the board is broken")
def topology(view: View) -> list[Outcome]:
    found = npu.topology(view.facts.answers.text("ascend.topo", any_status=True))
    counts = {name: found.fast(name) for name in found.names}
    most = max(counts.values(), default=0)
    out = [warned(f"{name}: {count} fast links, others have {most}") for name, count in counts.items() if count < most]
    return out or [passed(f"{most} fast links each")]


@check("ascend.group", "the account that runs the engine may open the NPUs", platform="ascend",
       reads=("proc.account", "host.devices"), source="Ascend's drivers: group HwHiAiUser",
       remedy="sudo usermod -aG HwHiAiUser ACCOUNT")
def group(view: View) -> Outcome:
    if not view.need.account:
        return skipped("the plan names no account")
    found = view.facts.account
    if not found.get("exists"):
        return skipped(f"{view.need.account} is not there yet")
    if found["uid"] == 0 or "HwHiAiUser" in found["groups"]:
        return passed("root" if found["uid"] == 0 else "in HwHiAiUser")
    modes = [line.split()[0] for line in view.facts.answers.text("host.devices").splitlines()
             if "/dev/davinci" in line]
    if modes and all(mode[-1] in "67" for mode in modes):
        return passed("the device files are open to everybody")
    return failed(f"{view.need.account} is not in the group HwHiAiUser",
                  mend=f"sudo usermod -aG HwHiAiUser {view.need.account}")


@check("hccl.rank-table", "a rank table that the plan names is whole and names this host", platform="ascend",
       reads=("plan.files",), source="HCCL: server_count, unique device addresses, mode 640",
       remedy="make it anew from hccn_tool -i N -ip -g of every host; or leave it out: vllm-ascend needs none")
def rank_table(view: View) -> list[Outcome]:
    name = next((name for name in ("RANK_TABLE_FILE", "RANKTABLEFILE") if view.need.env.get(name)), "")
    if not name:
        return [skipped("the plan names none")]
    path = view.need.env[name]
    there = view.facts.plan_files.get(path, {})
    if "text" not in there:
        return [failed(f"{path}: {there.get('error', 'it could not be looked at')}")]
    try:
        table = npu.rank_table(str(there["text"]))
    except Unread as error:
        return [failed(f"{path}: {error.reason}")]
    out: list[Outcome] = []
    chips = {ascend.address(text) for text in _asked(view, "ip").values()} - {""}
    own = {address for _, _, address in table.ranks.values()} & chips
    if chips and not own:
        out.append(failed(f"{path} names none of this host's chips"))
    elif chips - own:
        out.append(noted(f"{path} leaves {plural(len(chips - own), 'chip')} of this host out"))
    if view.need.nodes and len(table.servers) != len(view.need.nodes):
        out.append(failed(f"{path} names {plural(len(table.servers), 'server')}, "
                          f"the replica has {len(view.need.nodes)}"))
    if str(there.get("mode", ""))[-1:] not in ("", "0"):
        out.append(noted(f"{path} has the mode {there['mode']}", mend=f"chmod 640 {path}"))
    return out or [passed(f"{plural(len(table.ranks), 'rank')} on {plural(len(table.servers), 'server')}")]


@check("hccl.address", "the address that HCCL is told is the host's own", platform="ascend", reads=("net.addresses",),
       source="HCCL_IF_IP: each rank offers it to the others", remedy="leave HCCL_IF_IP out: it is worked out per host")
def own_address(view: View) -> Outcome:
    value = view.need.env.get("HCCL_IF_IP", "")
    if not value or value.startswith("$"):
        return skipped("the plan gives none")
    text = view.facts.answers.text("net.addresses")
    present = {word.split("/")[0] for line in text.splitlines() for word in line.split()}
    return passed(value) if value in present else failed(f"HCCL_IF_IP={value} is on no interface of this host")
