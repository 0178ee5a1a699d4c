"""Recorded hosts for tests: the healthy 8 x H200 host, and what can be made of it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.verdicts import Finding, Verdict
from bringup.preflight import recording
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.facts import Facts
from bringup.preflight.judge import Chosen, judge
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need, profiles

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
CASES = HERE / "cases"
HEALTHY = Path(recording.__file__).parents[1] / "lab" / "recordings" / "h200x8"
ADDRESS = "192.0.2.11"


def sample(name: str) -> str:
    return (SAMPLES / name).read_bytes().decode("utf-8", "replace")


@functools.lru_cache(maxsize=1)
def _recorded() -> Answers:
    return recording.read(HEALTHY)


def healthy(host: str = "h200-01", peers: Mapping[str, str] | None = None) -> Answers:
    """The healthy host under another name; it resolves and reaches its peers."""
    answers = replace(_recorded(), host=host)
    own = (peers or {}).get(host, ADDRESS)
    names = {name: {"addresses": [address], "seconds": 0.001} for name, address in {host: own, **(peers or {})}.items()}
    answers = change(answers, "net.names", json.dumps({"hostname": host, "names": names}))
    answers = change(answers, "net.hosts_file", files={"/etc/hosts": f"127.0.0.1 localhost\n{own} {host}\n"})
    answers = change(answers, "net.addresses", answers.get("net.addresses").stdout.replace(ADDRESS, own))
    reach = {
        name: {"address": address, "source": own, "mtu": 9000, "ping": "passes"}
        for name, address in (peers or {}).items()
        if name != host
    }
    return change(answers, "net.reach", json.dumps(reach))


def change(
    answers: Answers,
    probe: str,
    stdout: str | None = None,
    *,
    rc: int = 0,
    files: Mapping[str, str] | None = None,
    **more: Any,
) -> Answers:
    """The host with another answer to one probe."""
    old = answers.get(probe)
    new = (
        Answer(probe, rc=rc, stdout=stdout or "", files=files if files is not None else {}, **more)
        if stdout is not None or files is not None or more
        else replace(old, rc=rc, missing=False)
    )
    return replace(answers, items={**answers.items, probe: new})


def edit(answers: Answers, probe: str, how: Callable[[str], str]) -> Answers:
    """The host with the text of one answer edited; the edit must change something."""
    text = answers.get(probe).stdout
    new = how(text)
    assert new != text, f"the edit of {probe} changed nothing"
    return replace(answers, items={**answers.items, probe: replace(answers.get(probe), stdout=new)})


def tree(answers: Answers, probe: str, how: Callable[[Any], None]) -> Answers:
    """The host with a JSON answer edited in place."""
    value = json.loads(answers.get(probe).stdout)
    how(value)
    return change(answers, probe, json.dumps(value))


def gpu_field(answers: Answers, index: int, pattern: str, value: str) -> Answers:
    """Change one value of one GPU in `nvidia-smi -q`: `pattern` is the key path's last keys, joined by newlines."""

    def how(text: str) -> str:
        parts = re.split(r"(?m)^(?=GPU 0000)", text)
        keys = [re.escape(key) for key in pattern.split(" / ")]
        expression = r"(?ms)(^ +" + r"\s.*?^ +".join(keys) + r" +: )[^\n]*"
        parts[index + 1], count = re.subn(expression, lambda m: m.group(1) + value, parts[index + 1], count=1)
        assert count == 1, pattern
        return "".join(parts)

    return edit(answers, "nvidia.q", how)


SMI = (
    "nvidia.q",
    "nvidia.version",
    "nvidia.list",
    "nvidia.nvlink",
    "nvidia.nvlink_errors",
    "nvidia.topo",
    "nvidia.p2p",
)
"""Probes that nvidia-smi answers."""


def no_driver_match(answers: Answers, library: str = "580.178") -> Answers:
    """A host whose library was upgraded under the running module."""
    text = f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {library}\n"
    for probe in list(answers.items):
        if answers.get(probe).stdout and probe in SMI:
            answers = change(answers, probe, text, rc=18)
    return change(answers, "nvidia.apps", text, rc=18)


def dead_gpu(answers: Answers, index: int = 4) -> Answers:
    """A host whose GPU does not answer though it stands on the bus."""

    def how(text: str) -> str:
        parts = re.split(r"(?m)^(?=GPU 0000)", text)
        address = parts[index + 1].split()[1]
        parts[index + 1] = f"Unable to determine the device handle for GPU{index}: {address[4:]}: Unknown Error\n"
        return "".join(parts)

    return edit(answers, "nvidia.q", how)


def inactive_link(answers: Answers, gpu: int = 3, link: int = 7) -> Answers:
    """A host with one NVLink down."""

    def how(text: str) -> str:
        parts = re.split(r"(?m)^(?=GPU \d)", text)
        parts[gpu + 1] = parts[gpu + 1].replace(f"Link {link}: 26.562 GB/s", f"Link {link}: <inactive>")
        return "".join(parts)

    return edit(answers, "nvidia.nvlink", how)


PLANNED = Need(
    deployed=True,
    hardware="h200",
    profile=profiles()["h200"],
    engine="vllm",
    variant="bf16",
    recipe="zai-org/GLM-5.1",
    manager="systemd",
    model_path="/models/GLM-5.1",
    weights_bytes=1_490_000_000_000,
    memory_minimum=1_786_000_000_000,
    memory_fraction=0.9,
    ports={8000: "HTTP", 29501: "rendezvous"},
    cuda_of_wheel="13.0",
    wheel="torch 2.11.0 (cu130)",
)
"""A plan that the healthy host fits."""


def planned(hosts: Iterable[str], **more: Any) -> dict[str, Need]:
    """Needs of the hosts of one replica."""
    names = list(hosts)
    addresses = {host: f"192.0.2.{11 + number}" for number, host in enumerate(names)}
    return {host: replace(PLANNED, nodes=tuple(names), addresses=addresses, **more) for host in names}


def fleet(names: Iterable[str]) -> tuple[dict[str, Answers], dict[str, Need]]:
    """Healthy hosts of one replica, and their needs."""
    needs = planned(names)
    addresses = dict(next(iter(needs.values())).addresses)
    return {host: healthy(host, addresses) for host in needs}, needs


def findings_of(
    answers: Mapping[str, Answers] | Answers,
    needs: Mapping[str, Need] | Need | None = None,
    chosen: Chosen | None = None,
) -> list[Finding]:
    """All findings."""
    hosts = {answers.host: answers} if isinstance(answers, Answers) else answers
    views = []
    for host, one in hosts.items():
        need = needs if isinstance(needs, Need) else (needs or {}).get(host, Need())
        views.append(View(Facts(one), need))
    return judge(views, chosen)


def bad(findings: Iterable[Finding]) -> dict[tuple[str, str], Finding]:
    """Findings that are worse than a note, by subject and check."""
    return {(f.subject, f.check): f for f in findings if f.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)}


def by_check(findings: Iterable[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]
