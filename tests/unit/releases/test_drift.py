"""Approved against running, judged from what a host said of itself."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import _host_state, live_process
from bringup.base.verdicts import Finding, Verdict
from bringup.releases.document import Release
from bringup.releases.drift import between, engine_words, judge
from bringup.releases.history import HostStore
from bringup.releases.proving import driver_problems

ARGV = ["@{env}/bin/vllm", "serve", "/models/GLM-5.1", "--max-model-len", "65536", "--host", "@{--host}"]
VALUES = {"env": "/opt/bringup/envs/ab", "root": "/opt/bringup", "environment": "e" * 64, "--host": "198.18.0.11"}
IDENTITY = {"engine": "vllm", "engine_version": "0.24.0", "environment": {"name": "e", "digest": "e" * 64},
            "model": {"path": "/models/GLM-5.1"}, "served_name": "glm", "world_size": 8, "api_key_variable": None,
            "replicas": [[{"role": "head", "node_rank": 0, "ranks": [0, 1], "argv": ARGV, "env": {"NCCL_DEBUG": "WARN"},
                           "http_port": 8000, "ports": [8000]}]]}
RELEASE = Release(IDENTITY, {})
FILLED = ["/opt/bringup/envs/ab/bin/vllm", "serve", "/models/GLM-5.1", "--max-model-len", "65536", "--host",
          "198.18.0.11"]
APPROVED = {"kernel": "6.8.0-85", "drivers": {"nvidia": "580.126.09"},
            "packages": {"nvidia-driver-580": "580.126.09-1"}}
LABELS = {RELEASE.digest: "r0042"}


def seen() -> dict[str, Any]:
    """A host on which everything is as approved."""
    return {
        "kernel": "6.8.0-85", "drivers": {"nvidia": "580.126.09"}, "packages": {"nvidia-driver-580": "580.126.09-1"},
        "current": RELEASE.digest, "link_broken": False, "processes": {"r1-gpu01": {
            "state": "running", "pid": 77, "release": RELEASE.digest, "manager": "systemd", "files": [],
            "unit": {"name": "bringup-r1-gpu01.service", "state": "same", "drop_ins": [], "reload": False, "lines": []},
            "argv": ["/opt/bringup/envs/ab/bin/python", *FILLED],
            "env": {"NCCL_DEBUG": "WARN", "PATH": "/bin", "INVOCATION_ID": "1", "VLLM_API_KEY": "sha256:1"},
            "launch": {"argv": FILLED, "env": {"NCCL_DEBUG": "WARN"}, "environment": "e" * 64,
                       "env_path": "/opt/bringup/envs/ab"}}}}


def store(**changed: Any) -> HostStore:
    document = {"argv": FILLED, "env": {"NCCL_DEBUG": "WARN"}, "values": VALUES, "node": "gpu01", "node_rank": 0,
                "role": "head", "ranks": [0, 1], **changed}
    return HostStore(RELEASE.digest, {RELEASE.digest: RELEASE}, {}, {RELEASE.digest: {"r1-gpu01": document}}, [],
                     {RELEASE.digest: APPROVED})


SOUND = {"/opt/bringup/envs/ab": {"reason": None, "changed": []}}


def judged(host: dict[str, Any], kept: HostStore | None = None, packages: Any = None) -> list[Finding]:
    return judge("gpu01", host, kept or store(), packages or SOUND, LABELS)


def blocking(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.check, " ".join((f.summary, *f.details))) for f in findings if f.blocks]


def test_a_host_as_approved_has_passes_alone() -> None:
    found = judged(seen())
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert {f.check for f in found} >= {"drift.link", "drift.files", "drift.unit", "drift.flags", "drift.packages",
                                        "drift.host"}


def changed(path: str, value: Any) -> dict[str, Any]:
    host = copy.deepcopy(seen())
    place: Any = host
    *way, last = path.split(".")
    for name in way:
        place = place["processes"]["r1-gpu01"] if name == "P" else place[name]
    place[last] = value
    return host


@pytest.mark.parametrize(("host", "check", "words"), [
    (changed("current", "b" * 64), "drift.link", "`current` names bbbbbbbbbbbb, r0042 runs"),
    (changed("link_broken", True), "drift.link", "which is not here"),
    (changed("current", "no link"), "drift.link", "no symbolic link"),
    (changed("P.argv", ["/opt/bringup/envs/ab/bin/python", *FILLED[:3], "--max-model-len", "4096", *FILLED[5:]]),
     "drift.flags", "--max-model-len 65536 -> 4096"),
    (changed("P.argv", [*FILLED, "--enforce-eager"]), "drift.flags", "--enforce-eager"),
    (changed("P.argv", None), "drift.flags", "cannot be read"),
    (changed("P.env", {"NCCL_DEBUG": "INFO"}), "drift.variables", "NCCL_DEBUG WARN -> INFO"),
    (changed("P.env", {"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1"}), "drift.variables",
     "NCCL_P2P_DISABLE 1 (not in"),
    (changed("P.env", {}), "drift.variables", "NCCL_DEBUG WARN -> not set"),
    (changed("P.files", [["launch script", "/x.sh", "edited after it was written"]]), "drift.files", "edited after"),
    (changed("P.unit", {"name": "u", "state": "edited", "drop_ins": [], "reload": True, "lines": ["+ Nice=5"]}),
     "drift.unit", "+ Nice=5"),
    (changed("P.unit", {"name": "u", "state": "same", "drop_ins": ["/etc/x.conf"], "reload": False, "lines": []}),
     "drift.unit", "/etc/x.conf"),
    (changed("kernel", "6.8.0-90"), "drift.kernel", "kernel 6.8.0-85 -> 6.8.0-90 since r0042 was approved"),
    (changed("drivers", {"nvidia": "590.1"}), "drift.driver", "nvidia 580.126.09 -> 590.1"),
    (changed("packages", {}), "drift.driver", "nvidia-driver-580 580.126.09-1 -> none"),
])
def test_each_way_of_drifting_is_found_and_nothing_else(host: dict[str, Any], check: str, words: str) -> None:
    found = blocking(judged(host))
    assert [c for c, _ in found] == [check] and words in found[0][1], found
    assert all(f.mend for f in judged(host) if f.blocks)


def test_an_edited_launch_file_is_found_by_the_release_it_belongs_to() -> None:
    [(check, text)] = blocking(judged(seen(), store(argv=[*FILLED, "--enforce-eager"])))
    assert check == "drift.files" and "the launch file of r1-gpu01 is not what r0042 makes" in text
    assert "--enforce-eager" in text


def test_a_package_changed_in_place_is_named() -> None:
    packages = {"/opt/bringup/envs/ab": {"reason": "files in it were changed",
                                         "changed": [["torch", "2.11 was replaced by 2.9"]]}}
    assert blocking(judged(seen(), packages=packages)) == [
        ("drift.packages", "the environment is not as it was built: files in it were changed "
                           "torch: 2.11 was replaced by 2.9")]


def test_a_secret_is_not_shown() -> None:
    host = changed("P.env", {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_secret"})
    host["processes"]["r1-gpu01"]["launch"]["env"]["HF_TOKEN"] = "hf_other"
    text = str(judged(host))
    assert "hf_secret" not in text and "hf_other" not in text.replace(str(host), "") and "(hidden)" in text


def test_what_was_never_good_here_has_no_driver_to_compare_with() -> None:
    kept = store()
    found = judged(seen(), HostStore(kept.current, kept.releases, {}, kept.launches, [], {}))
    assert [f.verdict for f in found if f.check == "drift.host"] == [Verdict.SKIP] and not blocking(found)


def test_a_script_shows_as_its_interpreter() -> None:
    approved = ["/e/bin/vllm", "serve", "/m", "--a"]
    assert engine_words(["/usr/bin/python3", "/e/bin/vllm", "serve", "/m", "--a"], approved) == approved
    assert engine_words(["/e/bin/python", "-m", "x.vllm", "serve", "/m", "--b"], approved) == [
        "/e/bin/vllm", "serve", "/m", "--b"]


def test_two_inventories_differ_in_drivers_packages_and_release() -> None:
    other = Release({**IDENTITY, "engine_version": "0.24.1"}, {})
    left = {"gpu01": {"release": RELEASE.document(), "kernel": "6.8", "drivers": {"nvidia": "580"}, "packages": {},
                      "versions": {"torch": "2.11"}}}
    right = {"stg01": {"release": other.document(), "kernel": "6.8", "drivers": {"nvidia": "570"}, "packages": {},
                       "versions": {"torch": "2.9"}},
             "stg02": {"release": other.document(), "kernel": "6.8", "drivers": {"nvidia": "580"}, "packages": {},
                       "versions": {"torch": "2.9"}}}
    found = {f.check: f for f in between(left, right, ("h200.yml", "staging.yml"))}
    assert found["drift.kernel"].verdict is Verdict.PASS and found["drift.package"].verdict is Verdict.PASS
    assert found["drift.release"].details == ("vllm 0.24.0 -> 0.24.1",)
    assert found["drift.driver"].details == ("nvidia: h200.yml 580; staging.yml 570 on stg01, 580 on stg02",)
    assert found["drift.python"].details == ("torch: h200.yml 2.11; staging.yml 2.9",)
    assert not any(f.blocks for f in between(left, left, ("a", "b")))


@pytest.mark.parametrize(("now", "then", "words"), [
    ({"nvidia": "580.1"}, {"nvidia": "580.1"}, None),
    ({"nvidia": "590.1"}, {"nvidia": "580.1"}, None),
    ({}, {}, None),
    ({}, {"nvidia": "580.1"}, "is not there any more"),
    ({"nvidia": "570.2"}, {"nvidia": "580.1"}, "older than 580.1"),
    ({"nvidia": "580.126.09", "nvidia library": "580.178"}, {}, "does not match the loaded module"),
    ({"nvidia": "580.126.09", "nvidia library": "580.126"}, {}, None),
])
def test_drivers_that_keep_a_release_from_starting(now: dict[str, str], then: dict[str, str], words: str | None
                                                   ) -> None:
    found = driver_problems(now, then)
    assert (words is None and not found) or (words is not None and words in found[0][0]), found


def test_drivers_are_read_from_files(tmp_path: Path) -> None:
    def put(path: str, text: str) -> None:
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release "
                                      "Build  (root@b)  Wed\nGCC version:  gcc 12\n")
    put("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.09", "")
    put("usr/local/Ascend/driver/version.info", "Version=24.1.rc2\nascendhal_version=7.35\n")
    put("sys/module/mlx5_core/version", "24.10-2.1.8\n")
    put("var/lib/dpkg/status", "Package: bash\nStatus: install ok installed\nVersion: 5\n\n"
                               "Package: nvidia-driver-580\nStatus: install ok installed\nVersion: 580.126.09-1\n\n"
                               "Package: nvidia-utils-570\nStatus: deinstall ok config-files\nVersion: 570\n")
    assert _host_state.drivers(str(tmp_path)) == {"nvidia": "580.126.09", "nvidia library": "580.126.09",
                                                  "ascend": "24.1.rc2", "mlx5": "24.10-2.1.8"}
    assert _host_state.packages(str(tmp_path)) == {"nvidia-driver-580": "580.126.09-1"}


def test_a_live_process_shows_its_words_and_no_secret() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)", "--api-key",
                              "sk-very-secret"], stdout=subprocess.PIPE,
                             env={**os.environ, "MY_TOKEN": "sk-other", "NCCL_DEBUG": "INFO"})
    assert child.stdout is not None
    child.stdout.readline()  # its own program by now
    try:
        words, env = live_process.live(child.pid, [], {"API_KEY": "sk-very-secret"})
    finally:
        child.kill()
        child.wait()
    assert words[-2:] == ["--api-key", "$API_KEY"] and env["NCCL_DEBUG"] == "INFO"
    assert env["MY_TOKEN"].startswith("sha256:") and "sk-other" not in str(env)
    assert live_process.live(2 ** 22 + 1, [], {}) == (None, None)


def test_packages_changed_in_place(tmp_path: Path) -> None:
    import base64
    import hashlib
    import json

    site = tmp_path / "lib/python3.11/site-packages"
    for name, version in (("one", "1.0"), ("two", "2.0"), ("three", "3.1")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(f"version = '{version}'\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256((site / f"{name}.py").read_bytes()).digest()).rstrip(b"=")
        (info / "RECORD").write_text(f"{name}.py,sha256={digest.decode()},10\n{info.name}/RECORD,,\n")
    (tmp_path / "bringup-env.json").write_text(json.dumps({"packages": {"one": "1.0", "two": "2.0", "three": "3.0",
                                                                        "four": "4.0"}}))
    (site / "two.py").write_text("version = 'patched'\n")
    assert live_process.changed_packages(str(tmp_path)) == [
        ["two", "two.py edited in place"], ["four", "4.0 was removed"], ["three", "3.0 was replaced by 3.1"]]
