"""Traffic hooks as they are read and filled in, load on metrics pages, limits of engines, kept secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bringup.agent.processes import launch
from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.inventory.model import Inventory
from bringup.serving.draining import Drained, Load, read_load
from bringup.serving.planning.site import HCCL_LEAST, HCCL_MOST, _raise, above_ours
from bringup.serving.planning.variables import rendered
from bringup.serving.probing import Probe
from bringup.serving.traffic import About, fill, hooks_of

ABOUT = About("r1", "http://198.18.0.11:8000/v1", "gpu01", ("gpu01", "gpu02"), "r0007")


def inventory_of(tmp_path: Path, text: str) -> Inventory:
    file = tmp_path / "site.yml"
    file.write_text("all:\n  hosts: {gpu01: {}, gpu02: {}, lb01: {}}\n  vars:\n    name: site7\n" + "".join(
        f"    {line}\n" for line in text.splitlines()))
    return load_inventory((str(file),), Project(tmp_path))


def read(tmp_path: Path, text: str) -> Any:
    inventory = inventory_of(tmp_path, text)
    return inventory, hooks_of(inventory, rendered(inventory))


def test_no_hooks(tmp_path: Path) -> None:
    assert read(tmp_path, "")[1] is None


def test_a_command_and_a_url(tmp_path: Path) -> None:
    inventory, hooks = read(tmp_path, 'traffic_out: "lbctl drain {{ replica.name }} {{ name }} {{ replica.port }}"\n'
                                      'traffic_in: "https://lb/in/{{ replica.head }}"\ntraffic_deadline: 90')
    assert hooks.deadline == 90
    out = fill(hooks.out, ABOUT, inventory, rendered(inventory)("gpu01"))
    assert (out.command, out.host) == ("lbctl drain r1 site7 8000", "localhost")
    assert out.environment["BRINGUP_TRAFFIC"] == "out" and out.environment["BRINGUP_NODES"] == "gpu01 gpu02"
    assert out.environment["BRINGUP_ENDPOINT"] == ABOUT.endpoint and out.environment["BRINGUP_RELEASE"] == "r0007"
    back = fill(hooks.back, ABOUT, inventory, rendered(inventory)("gpu01"))
    assert (back.url, back.method) == ("https://lb/in/gpu01", "POST") and 204 in back.status and 302 not in back.status


def test_a_mapping_runs_elsewhere(tmp_path: Path) -> None:
    inventory, hooks = read(tmp_path, 'traffic_out: {command: "true", delegate_to: "{{ replica.head }}", timeout: 5}\n'
                                      "traffic_in: {url: 'http://user:secret@lb/in', method: put, status: [204]}")
    out = fill(hooks.out, ABOUT, inventory, rendered(inventory)("gpu01"))
    assert (out.host, out.timeout) == ("gpu01", 5)
    assert fill(hooks.back, ABOUT, inventory, rendered(inventory)("gpu01")).status == (204,)
    assert hooks.back.shown == "put http://lb/in"


@pytest.mark.parametrize(("text", "words"), [
    ("traffic_in: 'true'", "`traffic_in` stands without `traffic_out`"),
    ("traffic_out: [a]\ntraffic_in: 'true'", "takes a command, a URL or a mapping"),
    ("traffic_out: {command: a, url: 'http://b'}\ntraffic_in: 'true'", "a command or a URL"),
    ("traffic_out: {command: a, method: GET}\ntraffic_in: 'true'", "does not go with a command"),
    ("traffic_out: {urll: 'http://b'}\ntraffic_in: 'true'", "nearest: url"),
    ("traffic_out: a\ntraffic_in: 'true'\ntraffic_deadline: -1", "`traffic_deadline` takes seconds"),
])
def test_hooks_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value) and "site.yml" in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [
    ("{url: 'ftp://b'}", "is no URL"), ("{url: 'http://b', status: often}", "takes HTTP status codes"),
    ("{command: a, timeout: 0}", "timeout` takes seconds"), ("{command: a, delegate_to: lb1}", "lb01"),
    ("{url: 'http://b', headers: 3}", "takes a mapping")])
def test_values_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    inventory, hooks = read(tmp_path, f"traffic_out: {text}\ntraffic_in: 'true'")
    with pytest.raises(InputError) as caught:
        fill(hooks.out, ABOUT, inventory, rendered(inventory)("gpu01"))
    assert words in str(caught.value)


def test_load_on_a_page_of_metrics() -> None:
    vllm = ('# HELP x\nvllm:num_requests_running{engine="0",model_name="glm"} 2.0\n'
            'vllm:num_requests_running{engine="1",model_name="glm"} 1.0\nvllm:num_requests_waiting{engine="0"} 4.0\n'
            'vllm:request_success_total{finished_reason="stop"} 7.0\n'
            'vllm:request_success_total{finished_reason="length"} 1.0\n')
    assert read_load(vllm) == Load(7, 8)
    assert read_load("sglang:num_running_reqs 1.0\nsglang:num_queue_reqs 0.0\n") == Load(1, None)
    assert read_load("process_cpu_seconds_total 3\n") is None
    assert "2 requests are still in flight" in Drained(2, 60.0).told and "cut off" in Drained(2, 60.0).told
    assert "cannot be counted" in Drained(None, 60.0, "/metrics answers 404").told


def test_limits_of_engines_are_above_ours_and_never_lowered() -> None:
    assert above_ours(1000.0) == 2000 and above_ours(100.0, HCCL_LEAST) == HCCL_LEAST < HCCL_MOST
    env = {"A": ("3600", "recipe"), "B": ("600", "recipe")}
    for name in ("A", "B", "C"):
        _raise(env, name, 2000)
    assert env == {"A": ("3600", "recipe"), "B": ("2000", "site"), "C": ("2000", "site")}


@pytest.mark.parametrize("manager", ["detached", "docker"])
def test_a_secret_is_read_as_it_was_kept(tmp_path: Path, manager: str) -> None:
    place = launch.Place(str(tmp_path), "r1-gpu01")
    Path(place.secrets).parent.mkdir(parents=True)
    Path(place.folder).mkdir(parents=True)
    Path(place.record).write_text(f'{{"manager": "{manager}"}}')
    key = 'sk-"x"$y'
    Path(place.secrets).write_text(f"VLLM_API_KEY={key if manager == 'docker' else launch._quoted(key)}\n")
    assert launch.read_secrets(place) == {"VLLM_API_KEY": key}


def test_an_engine_with_another_key_is_known_by_its_answer() -> None:
    refused = Probe(200, (), False, "/v1/models answers 401", "models", 0.1, "glm")
    assert refused.other_key and not Probe(200, (), False, "/v1/models answers 500", "models", 0.1, "glm").other_key
