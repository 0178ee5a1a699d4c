"""Recordings that may be given away: nothing names the site any more, and the verdicts are the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_hosts import PLANNED, SAMPLES, change, dead_gpu, findings_of, fleet, inactive_link, sample

from bringup.preflight import recording
from bringup.preflight.answers import Answers
from bringup.preflight.redact import Redactor, redacted
from bringup.preflight.requirement import Need

NAMES = ("rack7-gpu01", "rack7-gpu02", "rack7-gpu03")


def site() -> tuple[dict[str, Answers], dict[str, Need]]:
    answers, needs = fleet(NAMES)
    answers["rack7-gpu02"] = inactive_link(answers["rack7-gpu02"])
    answers["rack7-gpu03"] = dead_gpu(answers["rack7-gpu03"])
    for host in NAMES:
        text = f"PID PPID USER STAT START ELAPSED UNIT MARK COMMAND\n7 1 jane S 5 60 - - vi /home/jane/on-{host}/x\n"
        answers[host] = change(answers[host], "proc.processes", text)
    return answers, needs


def test_nothing_names_the_site_and_the_verdicts_are_the_same(tmp_path: Path) -> None:
    answers, _ = site()
    told: list[str] = []
    made = redacted(answers, told.append)
    assert [one.host for one in made] == ["host01", "host02", "host03"]
    assert told and "read them before" in told[0]
    for one in made:
        recording.write(tmp_path / one.host, one)
    everything = "\n".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    for word in ("rack7", "jane", "192.0.2.11", "192.0.2.12"):
        assert word not in everything, word
    serials = {text for one in answers.values() for answer in one.items.values()
               for text in re.findall(r"Serial Number +: (\S+)", answer.stdout)} - {"N/A"}
    new = set(re.findall(r"Serial Number +: (\S+)", everything))
    assert serials and len(new - {"N/A"}) == len(serials)
    before = [(NAMES.index(one.subject), one.check, one.verdict)
              for one in findings_of(answers) if one.subject in NAMES]
    hosts = [f"host0{number}" for number in (1, 2, 3)]
    again = {one.host: one for one in (recording.read(tmp_path / host) for host in hosts)}
    after = [(hosts.index(one.subject), one.check, one.verdict) for one in findings_of(again) if one.subject in hosts]
    assert after == before
    assert {verdict.value for _, _, verdict in after} >= {"pass", "fail"}


def test_one_thing_has_one_stand_in_everywhere() -> None:
    redactor = Redactor(["gpu-a"])
    redactor.addresses.update(("203.0.113.9", "10.20.30.40"))
    text = redactor.text("gpu-a at 10.20.30.40 and 10.20.30.41, 203.0.113.9, 52:54:00:12:34:56, gpu-ab, not-gpu-a")
    assert re.fullmatch(r"host01 at (\S+)\.40 and \1\.41, \S+\.9, 02:00:00:00:00:01, gpu-ab, not-gpu-a", text), text
    assert redactor.text("10.20.30.40") == re.findall(r"at (\S+)", text)[0]
    assert redactor.text("::ffff 127.0.0.1 0.0.0.0 255.255.255.0") == "::ffff 127.0.0.1 0.0.0.0 255.255.255.0"


@pytest.mark.parametrize("text", [
    "Driver Version : 580.159.04", "nvidia-cublas 12.8.4.1", "GPU 00000000:1B:00.0", "0000:1b:00.0 0302: 10de:2335",
    "96.00.A5.00.1A", "[    0.250385] NET: Registered", "firmware 7.1.0.11.220", "12:34:56 up 3 days", "Not Serial: x",
])
def test_versions_and_bus_addresses_stay(text: str) -> None:
    assert Redactor(["gpu01"]).text(text) == text


def test_a_gid_keeps_the_address_that_its_interface_has() -> None:
    redactor = Redactor([])
    address = redactor.text("10.1.2.3")
    gid = redactor.text("0000:0000:0000:0000:0000:ffff:0a01:0203")
    from bringup.preflight.parsers.rdma import Gid

    assert Gid(3, "RoCE v2", gid, "ib0").ipv4 == address
    assert redactor.text("fe80:0000:0000:0000:5254:00ff:fe12:3456").startswith("fe80:0000:0000:0000:0200:")


def test_every_sample_is_read_as_before() -> None:
    """Redacting changes no fact that a check reads from the tools' text but names of devices and persons."""
    from bringup.preflight.parsers import nvidia_q, nvidia_text, rdma

    for name, parse in (("nvidia-smi/query-q-h100x8-535.161.08.txt", nvidia_q.parse),
                        ("nvidia-smi/topo-m-h100x8-nic8-570.133.20.txt", nvidia_text.matrix)):
        text = sample(name)
        plain = parse(Redactor(["x1"]).text(text))
        if isinstance(plain, nvidia_q.SmiLog):
            stand = [replace(gpu, serial="", uuid="") for gpu in plain.gpus]
            assert stand == [replace(gpu, serial="", uuid="") for gpu in nvidia_q.parse(text).gpus]
        else:
            assert plain == parse(text)
    for path in sorted((SAMPLES / "ib").glob("ibstat-*")):
        text = path.read_text(errors="replace")
        assert rdma.ibstat(Redactor([]).text(text)) == rdma.ibstat(text)


def test_a_plan_judges_what_was_redacted_in_an_archive(tmp_path: Path) -> None:
    answers, _ = site()
    with recording.opened(tmp_path / "sub" / "c.tgz") as folder:
        for one in redacted(answers):
            recording.write(folder / one.host, one)
    found = recording.find(tmp_path / "sub" / "c.tgz")
    assert [path.name for path in found] == ["host01", "host02", "host03"]
    names = json.loads(recording.read(found[1]).get("net.names").stdout)
    assert names["hostname"] == "host02"
    blocking = {one.check for one in findings_of(recording.read(found[1]), PLANNED) if one.blocks}
    assert "nvlink.up" in blocking
