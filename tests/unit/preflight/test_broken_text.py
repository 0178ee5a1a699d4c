"""A sick host whose tool's text is cut, doubled, garbled or localised never passes the check that finds it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import pytest
from preflight_hosts import (
    PLANNED,
    change,
    dead_gpu,
    edit,
    findings_of,
    gpu_field,
    healthy,
    inactive_link,
    sample,
    tree,
)

from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answers
from bringup.preflight.checks import load as load_checks
from bringup.preflight.judge import Chosen


def measured(probe: str, text: str) -> Callable[[], Answers]:
    return lambda: change(healthy(), probe, text)


SLOW = sample("nccl-tests/all_reduce-a100x8-1node.txt")
WRONG = SLOW.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 3 FAILED")
COPIES = (sample("nvbandwidth/nvbandwidth-results.txt").replace("369.36", " 12.00")
          .replace("host_to_device_memcpy_ce 1985.60", "host_to_device_memcpy_ce 1628.24"))

def one_cns(text: str) -> str:
    return re.sub(r"OK(\s*)$", r"CNS\1", text, count=1, flags=re.MULTILINE)


SICK: list[tuple[str, str, Callable[[], Answers]]] = [
    ("nvlink.up", "nvidia.nvlink", lambda: inactive_link(healthy())),
    ("nvidia.count", "nvidia.q", lambda: dead_gpu(healthy())),
    ("nvidia.memory", "nvidia.q", lambda: gpu_field(healthy(), 5, "FB Memory Usage / Total", "71000 MiB")),
    ("nvlink.p2p", "nvidia.p2p", lambda: edit(healthy(), "nvidia.p2p", one_cns)),
    ("fabric.state", "nvidia.q", lambda: gpu_field(healthy(), 7, "Fabric / State", "In Progress")),
    ("time.sync", "time.chrony", lambda: change(healthy(), "time.chrony",
                                                sample("time/chronyc-tracking-69s-fast.txt"))),
    ("disk.local", "disk.room", lambda: tree(healthy(), "disk.room", lambda rows: [
        row.update(options="ro,relatime") for row in rows])),
    ("collective.all-reduce", "load.all_reduce", measured("load.all_reduce", SLOW)),
    ("collective.all-reduce", "load.all_reduce", measured("load.all_reduce", WRONG)),
    ("copy.host", "load.copies", measured("load.copies", COPIES)),
    ("dcgm.diag", "load.dcgm", measured("load.dcgm", sample("dcgm/diag-r2-fail-thermal-fragment.txt"))),
    ("dcgm.diag", "load.dcgm", measured("load.dcgm", sample("dcgm/diag-j-fail.json"))),
]


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
    for _ in range(12):
        letters = list(text)
        for _ in range(max(1, len(letters) // 40)):
            letters[chance.randrange(len(letters))] = chance.choice("\0\x1b[|:,-/ \n%éA")
        yield "".join(letters)


@pytest.mark.parametrize(("check", "probe", "make"), SICK, ids=[f"{check}-{n}" for n, (check, _, _) in enumerate(SICK)])
def test_broken_text_of_a_sick_host_is_no_pass(check: str, probe: str, make: Callable[[], Answers]) -> None:
    load_checks()
    sick = make()
    chosen = Chosen("deep", only=(check,))
    whole = {one.verdict for one in findings_of(sick, PLANNED, chosen) if one.check == check}
    assert whole & {Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN}, "the host is not sick"
    text = sick.get(probe).stdout
    for number, variant in enumerate(broken(text, random.Random(check))):
        if variant == text:
            continue
        verdicts = {one.verdict for one in findings_of(change(sick, probe, variant), PLANNED, chosen)}
        assert verdicts and not verdicts <= {Verdict.PASS}, f"variant {number} passes:\n{variant[:400]}"


@pytest.mark.parametrize("probe", ["load.all_reduce", "load.copies", "load.dcgm", "load.disk", "pair.tcp", "pair.rdma"])
def test_what_measures_printed_otherwise_is_never_a_pass(probe: str) -> None:
    for text in ("", "{}", "[]", "null", "{\"m2\": 3}", "bash: command not found", "\0\0", "{\"bytes\": \"x\"}"):
        found = findings_of(change(healthy(), probe, text), PLANNED, Chosen("deep"))
        own = [one for one in found if one.check.split(".")[0] in ("collective", "copy", "dcgm", "disk", "net", "rdma")
               and probe in _reads(one.check)]
        assert not [one for one in own if one.verdict is Verdict.PASS], (probe, text)


def _reads(name: str) -> tuple[str, ...]:
    from bringup.preflight.registry import checks

    return checks()[name].reads
