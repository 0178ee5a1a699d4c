"""A sick host whose tool's text is cut, doubled, garbled or localised never passes what finds the sickness."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from preflight_hosts import PLANNED, change, edit, findings_of, healthy, sample
from preflight_makers import AMD, ASCEND, amd_host, ascend_host, without_process
from preflight_sick import SICK

from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answers
from bringup.preflight.checks import load as load_checks
from bringup.preflight.judge import Chosen
from bringup.preflight.registry import checks
from bringup.preflight.requirement import Need

LISTS = {"host.kernel_log", "host.swaps", "host.pci"}
"""Answers of free lines: one that stops early is a shorter one. The agent says of each whether it was cut."""
FREE = {"pcie.narrow", "nvidia.readable", "host.machine-check", "pcie.errors", "disk.errors",
        "nccl.settings"}
"""Found by words of the kernel or the driver in a place where any text may stand: garbled they are such a text."""
BLOCKS = {"nvidia.readable"}
"""Checks that stop the host for whatever cannot be read of a GPU."""

SLOW = sample("nccl-tests/all_reduce-a100x8-1node.txt")
WRONG = SLOW.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 3 FAILED")
COPIES = (sample("nvbandwidth/nvbandwidth-results.txt").replace("369.36", " 12.00")
          .replace("host_to_device_memcpy_ce 1985.60", "host_to_device_memcpy_ce 1628.24"))


def measured(probe: str, text: str) -> Callable[[Answers], Answers]:
    return lambda answers: change(answers, probe, text)


def one(probe: str, old: str, new: str) -> Callable[[Answers], Answers]:
    """The host with one place of an answer changed."""
    return lambda answers: edit(answers, probe, lambda text: text.replace(old, new, 1))


def port_files(change_one: str, value: str) -> Callable[[Answers], Answers]:
    """The host with one file of its first RDMA port changed."""

    def make(answers: Answers) -> Answers:
        files = dict(answers.get("rdma.sysfs").files)
        path = next(path for path in sorted(files) if "/mlx5_0/" in path and path.endswith(change_one))
        return change(answers, "rdma.sysfs", files={**files, path: value})

    return make


def chips(text: str) -> str:
    return "".join(f"== {number}\n{text}" for number in range(8))


MORE: list[tuple[str, str, Callable[[Answers], Answers]]] = [
    ("collective.all-reduce", "load.all_reduce", measured("load.all_reduce", SLOW)),
    ("collective.all-reduce", "load.all_reduce", measured("load.all_reduce", WRONG)),
    ("copy.host", "load.copies", measured("load.copies", COPIES)),
    ("copy.memory", "load.copies", measured("load.copies", sample("nvbandwidth/device-local-copy-h200x2.txt").replace(
        "2009.87", "1009.87").replace("4022.31", "3022.31"))),
    ("dcgm.diag", "load.dcgm", measured("load.dcgm", sample("dcgm/diag-r2-fail-thermal-fragment.txt"))),
    ("dcgm.diag", "load.dcgm", measured("load.dcgm", sample("dcgm/diag-j-fail.json"))),
    ("disk.health", "host.nvme", measured("host.nvme", "== /dev/nvme0\n" + sample(
        "host/nvme-smart-log-2.11.json").replace('"value": 0', '"value": 4'))),
    ("rdma.state", "rdma.sysfs", port_files("/state", "1: DOWN\n")),
]
ASCENDS: list[tuple[str, str, Callable[[Answers], Answers]]] = [
    ("ascend.health", "ascend.info", one("ascend.info", "OK  ", "Alarm")),
    ("ascend.ecc", "ascend.ecc", one("ascend.ecc", "HBM Double Bit Error Count               : 0",
                                     "HBM Double Bit Error Count               : 7")),
    ("ascend.board", "ascend.board", one("ascend.board", "Compatibility                  : OK",
                                         "Compatibility                  : NOK")),
    ("hccn.link", "hccn.link", one("hccn.link", "== 3\nlink status: UP", "== 3\nlink status: DOWN")),
    ("hccn.flaps", "hccn.link_stat", measured("hccn.link_stat", chips(sample(
        "hccn_tool/link_stat-g-last-down.txt")))),
    ("hccn.health", "hccn.net_health", one("hccn.net_health", "Success", "Socket failed")),
    ("hccn.tls", "hccn.tls", one("hccn.tls", "tls switch[0]", "tls switch[1]")),
    ("hccn.address", "ascend.hccn_conf", lambda answers: change(answers, "ascend.hccn_conf", files={
        "/etc/hccn.conf": "".join(f"address_{n}=29.0.0.{11 + n}\n" for n in range(8))})),
    ("hccn.optics", "hccn.optical", one(
        "hccn.optical", "Rx Power1            : 0.9954", "Rx Power1            : 0.0054")),
    ("hccn.ping", "hccn.ping", measured("hccn.ping", "== 0 npu-02 10.0.16.80 ping\n" + sample(
        "hccn_tool/ping-g-loss.txt") + "== end\n")),
    ("hccn.errors", "hccn.stat", measured("hccn.stat", chips(sample("hccn_tool/stat-g-errors.txt")))),
    ("hccn.neighbour", "hccn.lldp", one("hccn.lldp", "Huawei Versatile Routing Platform Software", "AscendNPU")),
    ("ascend.topology", "ascend.topo", one("ascend.topo", "X          HCCS", "X          SYS ")),
    ("ascend.driver", "ascend.driver", lambda answers: change(answers, "ascend.driver", files={
        "/usr/local/Ascend/driver/version.info": "Version=23.0.7\n"})),
]
AMDS: list[tuple[str, str, Callable[[Answers], Answers]]] = [
    ("amd.memory", "amd.smi", one("amd.smi", "0%   0%", "17%   0%")),
    ("amd.count", "host.pci", lambda answers: edit(answers, "host.pci", lambda text: text + (
        "0000:a8:00.0 1200: 1002:74a1 driver=amdgpu\n"))),
]

CASES: list[tuple[str, str, Callable[[], Answers], Need]] = []
for _name, (_make, _check, _, _) in SICK.items():
    CASES.append((_check, "", lambda make=_make: make(healthy("sick-01")), PLANNED))
CASES += [(check, probe, lambda make=make: make(healthy("sick-01")), PLANNED) for check, probe, make in MORE]
CASES += [(check, probe, lambda make=make: make(without_process(ascend_host("sick-01"))), ASCEND)
          for check, probe, make in ASCENDS]
CASES += [(check, probe, lambda make=make: make(amd_host("sick-01")), AMD) for check, probe, make in AMDS]


def broken(text: str, chance: random.Random) -> Iterator[str]:
    for part in range(1, 24):
        yield text[: len(text) * part // 24]
    yield text + text
    yield text.replace(":", "：")
    yield re.sub(r"\d", "x", text)
    yield text.replace(".", ",")
    yield text.replace(" ", "\u00a0")
    yield text.swapcase()
    yield "\0" * 64
    yield "Segmentation fault\n"
    yield "错误: 无法访问\n"
    for _ in range(12):
        letters = list(text)
        for _ in range(max(1, len(letters) // 40)):
            letters[chance.randrange(len(letters))] = chance.choice("\0\x1b[|:,-/ \n%éA")
        yield "".join(letters)


@pytest.mark.parametrize(("check", "probe", "make", "need"), CASES,
                         ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)])
def test_broken_text_of_a_sick_host_is_no_pass(check: str, probe: str, make: Callable[[], Answers], need: Need) -> None:
    load_checks()
    sick = make()
    well = healthy("sick-01")
    chosen = Chosen("deep", only=(check, *(BLOCKS if need is PLANNED else ())))
    whole = {found.verdict for found in findings_of(sick, need, chosen) if found.check == check}
    assert whole & {Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN}, "the host is not sick"
    probes = [probe] if probe else [name for name in sick.items if sick.items[name] != well.items.get(name)
                                    and name in checks()[check].reads]
    assert probes
    for name in probes:
        answer = sick.get(name)
        for path, text in {**answer.files, **({"": answer.stdout} if not answer.files else {})}.items():
            if answer.files and text == well.get(name).files.get(path):
                continue
            for number, variant in enumerate(broken(text, random.Random(check))):
                if variant == text or check in FREE or (name in LISTS and text.startswith(variant)):
                    continue
                torn = replace(answer, stdout=variant) if not path else replace(
                    answer, files={**answer.files, path: variant})
                told = findings_of(replace(sick, items={**sick.items, name: torn}), need, chosen)
                assert not {found.verdict for found in told} <= {Verdict.PASS}, f"variant {number}:\n{variant[:400]}"


@pytest.mark.parametrize("probe", ["load.all_reduce", "load.copies", "load.dcgm", "load.disk", "pair.tcp", "pair.rdma"])
def test_what_measures_printed_otherwise_is_never_a_pass(probe: str) -> None:
    for text in ("", "{}", "[]", "null", "{\"m2\": 3}", "bash: command not found", "\0\0", "{\"bytes\": \"x\"}"):
        found = findings_of(change(healthy(), probe, text), PLANNED, Chosen("deep"))
        own = [each for each in found
               if each.check.split(".")[0] in ("collective", "copy", "dcgm", "disk", "net", "rdma")
               and probe in checks()[each.check].reads]
        assert not [each for each in own if each.verdict is Verdict.PASS], (probe, text)


MAKERS = {"nvidia": (healthy, PLANNED), "ascend": (lambda host: without_process(ascend_host(host)), ASCEND),
          "amd": (amd_host, AMD)}
NOISE = ("\0\0garbage\n", "bash: tool: command not found\n", "错误: 无法访问\n", "{\"a\": [1, 2", "[1, 2, 3]",
         "<html>502 Bad Gateway</html>\n", "Segmentation fault (core dumped)\n", "key: value\nother = thing\n")


@pytest.mark.parametrize("maker", MAKERS)
def test_noise_in_the_place_of_any_answer_is_never_a_pass(maker: str) -> None:
    """Every probe of a host in turn answers noise: what reads only that probe does not pass, and nothing raises."""
    make, need = MAKERS[maker]
    base = make("host-01")
    known = checks()
    for probe, answer in base.items.items():
        readers = [one.id for one in known.values() if one.reads == (probe,)]
        for text in NOISE:
            files = dict.fromkeys(answer.files, text)
            torn = replace(answer, stdout="" if files else text, files=files)
            for found in findings_of(replace(base, items={**base.items, probe: torn}), need, Chosen("deep")):
                assert found.check not in readers or found.verdict is not Verdict.PASS, (probe, text, found)
