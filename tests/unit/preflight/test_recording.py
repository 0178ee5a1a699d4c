"""Captures and replays: what is written is what is read, and the same verdicts come out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_hosts import HEALTHY, HERE, bad, findings_of, healthy, inactive_link

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER
from bringup.preflight import recording
from bringup.preflight.answers import Answer, Answers

ROOT = HERE.parents[2]


def test_what_is_captured_is_what_is_replayed(tmp_path: Path) -> None:
    answers = inactive_link(healthy("gpu01"))
    recording.write(tmp_path / "gpu01", answers)
    again = recording.read(tmp_path / "gpu01")
    assert again.host == "gpu01"
    assert dict(again.items) == dict(answers.items)
    assert findings_of(again) == findings_of(answers)


def test_line_ends_and_odd_bytes_survive(tmp_path: Path) -> None:
    odd = Answers.of(
        "h",
        [
            Answer("a.b", stdout="one\r\ntwo\x1b[0m\tthree", stderr="\ufffd"),
            Answer("c.d", rc=None, timed_out=True, seconds=9.0, abandoned="D"),
            Answer("e.f", files={"/proc/x y": "1\n"}, errors={"/proc/z": "Permission denied"}),
            Answer("g.h", rc=None, skipped="needs root"),
        ],
    )
    recording.write(tmp_path, odd)
    assert dict(recording.read(tmp_path).items) == dict(odd.items)


def test_a_recording_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "probes.json").write_text(json.dumps({"probes": [{"id": "time.chrony", "stdout": "t.txt"}]}))
    (tmp_path / "t.txt").write_text((HERE / "samples/time/chronyc-tracking-69s-fast.txt").read_text())
    found = findings_of(recording.read(tmp_path, "hand-01"))
    assert ("hand-01", "time.sync") in bad(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "not JSON"),
        ("[]", "no list"),
        ('{"probes": [{}]}', "without an id"),
        ('{"format": 7, "probes": []}', "another format"),
        ('{"probes": [{"id": "a.b", "stdout": "gone.txt"}]}', "gone.txt"),
        ('{"probes": [{"id": "a.b", "stdout": "../../etc/passwd"}]}', "outside"),
        ('{"probes": [{"id": "a.b", "files": ["/../../etc/passwd"]}]}', "outside"),
    ],
)
def test_a_broken_recording_is_refused_with_its_file(tmp_path: Path, text: str, word: str) -> None:
    folder = tmp_path / "h"
    folder.mkdir()
    (folder / "probes.json").write_text(text)
    with pytest.raises(InputError) as caught:
        recording.read(folder)
    assert word in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_host_cannot_write_outside_of_its_folder(tmp_path: Path) -> None:
    evil = Answers.of("h", [Answer("x.y", files={"/../../../evil": "text"})])
    with pytest.raises(InputError, match="outside"):
        recording.write(tmp_path / "a" / "h", evil)
    assert not list(tmp_path.glob("**/evil"))


def test_known_secrets_are_masked(tmp_path: Path) -> None:
    SCRUBBER.add("hunter2-hunter2")
    recording.write(tmp_path, Answers.of("h", [Answer("x.y", stdout="--api-key hunter2-hunter2\n")]))
    assert "hunter2" not in (tmp_path / "x.y.txt").read_text()


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_the_verb_on_recordings(tmp_path: Path) -> None:
    recording.write(tmp_path / "gpu01", healthy("gpu01"))
    recording.write(tmp_path / "gpu02", inactive_link(healthy("gpu02")))
    good = invoke("preflight", "--replay", str(tmp_path / "gpu01"))
    assert good.returncode == 0, good.stderr
    assert "pass " in good.stdout
    sick = invoke("preflight", "--replay", str(tmp_path))
    assert sick.returncode == 4, sick.stdout + sick.stderr
    assert "FAIL  gpu02            nvlink.up" in sick.stdout
    data = json.loads(invoke("preflight", "--replay", str(tmp_path), "--format", "json", "--only", "nvlink").stdout)
    assert [one["subject"] for one in data["findings"] if one["blocks"]] == ["gpu02"]
    wrong = invoke("preflight", "--replay", str(tmp_path), "--only", "nvlinks.upp")
    assert wrong.returncode == 2
    assert "nearest" in wrong.stderr and "nothing was contacted" in wrong.stderr
    gone = invoke("preflight", "--replay", str(tmp_path / "nowhere"))
    assert gone.returncode == 2 and "nowhere" in gone.stderr
    twice = invoke("preflight", "--replay", str(tmp_path), "--replay", str(tmp_path / "gpu01"))
    assert twice.returncode == 2 and "gpu01" in twice.stderr


def test_hosts_of_the_lab_are_judged_under_its_plan(tmp_path: Path) -> None:
    """Also where the lab is not up: it fills in where its models lie."""
    recording.write(tmp_path / "lab-head", healthy("lab-head"))
    done = invoke("preflight", "--replay", str(tmp_path), "--inventory", "lab", "--only", "nvidia")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "zai-org/GLM-5.1" in done.stdout


def test_the_verb_checks() -> None:
    text = invoke("checks", "--only", "nvlink")
    assert text.returncode == 0 and "nvlink.up" in text.stdout and "mend:" in text.stdout
    listed = json.loads(invoke("checks", "--format", "json").stdout)
    assert len(listed) >= 90
    assert set(listed[0]) == {"id", "group", "platform", "tier", "requires", "source", "remedy", "fix", "reads",
                              "scope"}


def test_facts_of_a_recording() -> None:
    found = json.loads(invoke("facts", "--replay", str(HEALTHY), "--format", "json").stdout)["h200-01"]
    assert found["smi"]["gpus"][7]["serial"] == "1650000000008"
    assert found["kernel"] == "6.8.0-85-generic"


@pytest.mark.parametrize(("key", "value", "said"), [
    ("seconds", [1], "a number"), ("files", "x", "a list of paths"), ("errors", [], "a mapping"), ("rc", "0", "whole"),
    ("stdout", {}, "the name of a file"), ("timed_out", 1, "true or false"), ("seconds", True, "a number")])
def test_an_entry_of_another_shape_is_told_with_its_key(tmp_path: Path, key: str, value: object, said: str) -> None:
    (tmp_path / "probes.json").write_text(json.dumps({"host": "h", "probes": [{"id": "nvidia.q", key: value}]}))
    with pytest.raises(InputError) as told:
        recording.read(tmp_path)
    assert f"`{key}` of the entry nvidia.q" in told.value.what and said in told.value.what


@pytest.mark.parametrize("name", ["clock", "connect"])
def test_a_pair_of_numbers_that_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "probes.json").write_text(json.dumps({"host": "h", "probes": [], name: ["a", 1]}))
    with pytest.raises(InputError, match=f"`{name}` is a list of two numbers"):
        recording.read(tmp_path)
