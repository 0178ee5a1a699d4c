"""How a host goes through a play: what is sent ahead, what waits, where hosts meet."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from small_runs import Start

from bringup.base.errors import ExitStatus, FindingError
from bringup.base.events import TaskStarted
from bringup.base.results import Result, Status
from bringup.connection.messages import Request
from bringup.run.actions import Call, Fleet, ModuleSpec
from bringup.run.batch import batches
from bringup.run.plays import Run
from bringup.ui.failures import failure_blocks


def watch(sent: list[list[Request]]) -> Any:
    """Record what each submission carries."""
    def prepare(run: Run) -> None:
        linker = run.engine.linker

        def watched(host: str) -> Any:
            link = linker(host)
            submit = link.submit

            def record(requests: list[Request]) -> None:
                sent.append(list(requests))
                submit(requests)

            link.submit = record  # type: ignore[method-assign]
            return link

        run.engine.linker = watched

    return prepare


def modules(sent: list[list[Request]]) -> list[list[str]]:
    return [[request.module for request in requests if request.module not in ("lock", "unlock")] for requests in sent
            if any(request.module not in ("lock", "unlock") for request in requests)]


def test_tasks_without_a_dependency_share_a_segment(start: Start) -> None:
    sent: list[list[Request]] = []
    tasks = "".join(f"    - {{name: t{n}, command: echo {n}}}\n" for n in range(20))
    seen = start(f"- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}", prepare=watch(sent))
    assert seen.status == 0
    assert [name for name, _ in seen.states()] == [f"t{n}" for n in range(20)]
    requests = [request for one in sent for request in one if request.module == "command"]
    assert len({request.segment for request in requests}) == 1


def test_a_segment_ends_where_a_result_is_needed_and_not_before(start: Start) -> None:
    sent: list[list[Request]] = []
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: one, command: echo 1, register: out}
    - {name: two, command: echo 2}
    - {name: three, command: echo 3, when: false}
    - {name: four, command: "echo {{ out.stdout }}", register: last}
    - {name: five, debug: {msg: "{{ last.stdout }}"}}
"""
    seen = start(text, prepare=watch(sent))
    assert seen.result("five").data["msg"] == "1"
    requests = [request for one in sent for request in one if request.module == "command"]
    assert len({request.segment for request in requests}) == 2
    assert requests[0].segment == requests[1].segment != requests[2].segment


@pytest.mark.parametrize("condition", ["out is defined", "out | default({}) != {}", "(out.rc | default(1)) == 0"])
def test_default_and_is_defined_wait(start: Start, condition: str) -> None:
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {{command: sleep 0.3, register: out}}
    - {{name: judged, command: "true", when: "{condition}"}}
"""
    assert start(text).states()[-1] == ("judged", "changed")


def test_what_was_sent_behind_a_failure_has_no_result(start: Start, tmp_path: Path) -> None:
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {{name: fine, command: "true"}}
    - {{name: fails, command: "false", register: out}}
    - {{name: behind, command: touch {tmp_path}/no}}
    - {{name: local behind, debug: {{msg: x}}}}
"""
    seen = start(text)
    assert seen.states() == [("fine", "changed"), ("fails", "failed")]
    assert not (tmp_path / "no").exists()
    assert seen.status == 1


def test_items_behind_a_failed_one_are_still_tried(start: Start, tmp_path: Path) -> None:
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {{name: items, command: "{{{{ item }}}}", loop: ["false", "touch {tmp_path}/second", "touch {tmp_path}/third"]}}
    - {{name: behind, command: touch {tmp_path}/no}}
"""
    seen = start(text)
    assert seen.states() == [("items", "failed")]
    assert (tmp_path / "second").exists()
    assert (tmp_path / "third").exists()
    assert not (tmp_path / "no").exists()


def test_a_slow_host_delays_nobody(start: Start) -> None:
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: slow on a, command: "sleep {{ 1.5 if inventory_hostname == 'a' else 0 }}"}
    - {name: last, command: date +%s.%N, register: out}
"""
    seen = start(text, hosts="a,b")
    assert float(seen.result("last").data["stdout"]) - float(seen.result("last", "b").data["stdout"]) > 1.2


def test_strategy_linear_keeps_step(start: Start) -> None:
    text = """
- hosts: all
  gather_facts: false
  strategy: linear
  tasks:
    - {name: slow on a, command: "sleep {{ 1 if inventory_hostname == 'a' else 0 }}"}
    - {name: last, command: date +%s.%N, register: out}
"""
    seen = start(text, hosts="a,b")
    assert abs(float(seen.result("last").data["stdout"]) - float(seen.result("last", "b").data["stdout"])) < 0.5


def test_another_hosts_result_is_waited_for(start: Start) -> None:
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: "sleep {{ 1 if inventory_hostname == 'a' else 0 }}; echo {{ inventory_hostname }}"
      register: out
    - {name: says, debug: {msg: "{{ hostvars['a'].out.stdout }} {{ hostvars.a.here is defined }}"}}
"""
    seen = start(text, hosts="a,b")
    assert seen.result("says", "b").data["msg"] == "a True"


def test_facts_are_waited_for_and_shared(start: Start) -> None:
    text = """
- hosts: all
  tasks:
    - {name: own, debug: {msg: "{{ ansible_facts.system }} {{ ansible_system }}"}}
    - {name: others, debug: {msg: "{{ hostvars['b'].ansible_facts.system }}"}}
"""
    seen = start(text, hosts="a,b")
    assert seen.states()[0] == ("Gathering Facts", "ok")
    assert seen.result("own").data["msg"] == "Linux Linux"
    assert seen.result("others").data["msg"] == "Linux"


def test_check_mode_changes_nothing(start: Start, tmp_path: Path) -> None:
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {{name: folder, file: {{path: "{tmp_path}/made", state: directory}}}}
    - {{name: text, copy: {{content: x, dest: "{tmp_path}/text"}}}}
    - {{name: reads, command: echo hi, check_mode: false, changed_when: false}}
"""
    seen = start(text, check=True, diff=True)
    assert seen.states() == [("folder", "changed"), ("text", "changed"), ("reads", "ok")]
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "text").exists()
    assert seen.result("text").diff
    assert not (tmp_path / "a").exists()


def test_no_log_hides_arguments_and_output(start: Start, tmp_path: Path) -> None:
    text = """
- hosts: all
  gather_facts: false
  vars: {word: hush-hush-77}
  tasks:
    - {name: fails, command: "ls /{{ word }}", no_log: true, ignore_errors: true}
    - {name: loop, command: "echo {{ item }}", loop: ["hush-hush-77"], no_log: true}
"""
    seen = start(text)
    assert "hush-hush" not in repr([event for event in seen.events if not isinstance(event, TaskStarted)])
    journals = list((tmp_path / "project" / ".bringup" / "runs").glob("*/journal.jsonl"))
    assert journals
    assert "hush-hush" not in journals[0].read_text()


def test_the_journal_of_a_run(start: Start, tmp_path: Path) -> None:
    start("- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: t, command: echo SECRETOUTPUT}\n")
    path = next((tmp_path / "project" / ".bringup" / "runs").glob("*/journal.jsonl"))
    assert len(path.parent.name) == 6
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["event"] for entry in entries] == [
        "RunStarted", "PlayStarted", "TaskStarted", "TaskEnded", "PlayEnded", "RunEnded"]
    assert "SECRETOUTPUT" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_undefined_variable_names_place_and_near_name(start: Start) -> None:
    text = """- hosts: all
  gather_facts: false
  vars: {folder: /srv}
  tasks:
    - name: wrong
      command: "ls {{ foldr }}"
"""
    result = start(text).result("wrong")
    assert result.message == "the variable `foldr` is not defined"
    assert result.next == "nearest: folder"
    assert any("play.yml:6" in line for line in result.output)


def test_nothing_matches(start: Start) -> None:
    seen = start("- name: serve\n  hosts: h200-workers\n  tasks: []\n",
                 inventory="h200_workers:\n  vars: {ansible_connection: local}\n  hosts:\n    x1:\n")
    assert seen.status == 2
    assert "h200_workers" in str(seen.error)
    assert ":2" in str(seen.error)


def fleet_module(action: Any) -> Any:
    spec = ModuleSpec("together", {"word": {"type": "str", "default": ""}}, fleet_action=action)

    def add(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bringup.cli.modules.module_table", lambda: table)

    from bringup.cli.modules import ModuleTable

    table = ModuleTable()
    table._found["together"] = spec
    return add


FLEET = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: slow, command: "sleep {{ 0.5 if inventory_hostname == 'a' else 0 }}"}
    - {name: meets, together: {word: "{{ 'w' }}"}, register: out, when: inventory_hostname != 'c'}
    - {name: behind, debug: {msg: "{{ out.msg | default('none') }}"}}
"""


def test_a_fleet_action_meets_all_hosts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def action(fleet: Fleet, args: Any) -> dict[str, Result]:
        lines: list[str] = []
        asked.update(hosts=fleet.hosts, args=dict(args), root=str(fleet.paths("a").root),
                     here=fleet.variables("a")["here"], question=fleet.ask("really?"),
                     connected=fleet.connect(["a"])["a"].status)
        calls = {host: Call("command", {"cmd": f"echo {host}"}, changes=False) for host in fleet.hosts}
        answers = fleet.call(calls, on_line=lambda host, text: lines.append(f"{host} {text}"))
        broken = fleet.call({"a": Call("command", {"cmd": "false"})})["a"]
        asked.update(broken=broken.status, read=[answers[host].data["stdout"] for host in fleet.hosts])
        return {"a": Result("a", "meets", Status.CHANGED, message="from a")}

    fleet_module(action)(monkeypatch)
    seen = start(FLEET, hosts="a,b,c")
    assert asked["hosts"] == ("a", "b")
    assert asked["args"] == {"word": "w"}
    assert asked["root"].endswith("/a")
    assert asked["question"] is None
    assert (asked["connected"], asked["broken"]) == (Status.OK, Status.FAILED)
    assert asked["read"] == ["a", "b"]
    assert [seen.states(host)[1] for host in "abc"] == [("meets", "changed"), ("meets", "ok"), ("meets", "skipped")]
    assert seen.result("behind").data["msg"] == "from a"
    assert seen.status == 0


def test_a_fleet_action_that_finds_something(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def action(fleet: Fleet, args: Any) -> dict[str, Result]:
        raise FindingError("two hosts are not fit", next="mend them")

    fleet_module(action)(monkeypatch)
    seen = start(FLEET, hosts="a,b")
    assert seen.states()[-1] == ("meets", "failed")
    assert seen.result("meets").message == "two hosts are not fit"
    assert seen.status == ExitStatus.FINDING


@pytest.mark.parametrize(("serial", "wanted"), [
    (None, ["abcdefg"]), (3, ["abc", "def", "g"]), ("50%", ["abc", "def", "g"]), ([1, 2, "100%"], ["a", "bc", "defg"]),
    (["10%"], list("abcdefg")), (0, ["abcdefg"]), (20, ["abcdefg"]),
])
def test_batches(serial: Any, wanted: list[str]) -> None:
    assert batches(list("abcdefg"), serial) == [list(part) for part in wanted]


def test_forks_limit_hosts_at_a_time(start: Start) -> None:
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: stamp, command: "sh -c 'date +%s.%N; sleep 0.4'", register: out}
"""
    began = time.monotonic()
    seen = start(text, hosts="a,b,c", forks="1")
    assert time.monotonic() - began > 1.2
    stamps = sorted(float(seen.result("stamp", host).data["stdout"]) for host in "abc")
    assert all(late - early >= 0.4 for early, late in itertools.pairwise(stamps))


def test_an_address_that_cannot_be_rendered_is_wrong_input(start: Start, tmp_path: Path) -> None:
    inventory = "all:\n  hosts:\n    a: {ansible_host: '{{ nosuchname }}'}\n"
    seen = start("- hosts: all\n  tasks:\n    - ping:\n", inventory=inventory)
    assert seen.status == 2
    shown = str(seen.error)
    assert "nosuchname" in shown
    assert "hosts.yml:3" in shown
    assert not seen.events


@pytest.mark.parametrize("what", ["end_play", "end_host", "flush_handlers"])
def test_a_condition_of_meta_that_cannot_be_judged_fails(start: Start, what: str) -> None:
    text = f"- hosts: all\n  gather_facts: false\n  tasks:\n    - meta: {what}\n      when: nosuch\n    - debug:\n"
    seen = start(text, hosts="a,b")
    assert seen.states() == [("meta", "failed")]
    assert seen.status == 1


def test_variables_of_a_fleet_action_are_rendered(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}

    def action(fleet: Fleet, args: Any) -> dict[str, Result]:
        variables = fleet.variables("a")
        got.update(deep=variables["deep"], none=variables.get("none"), there="deep" in variables)
        return {"a": Result("a", "meets", Status.OK, message=str(variables["broken"]))}

    fleet_module(action)(monkeypatch)
    more = "\n  vars: {n: 5, deep: {x: ['{{ n }}']}, broken: '{{ nope }}'}"
    text = FLEET.replace("gather_facts: false", f"gather_facts: false{more}")
    seen = start(text)
    assert got == {"deep": {"x": [5]}, "none": None, "there": True}
    assert "nope" in seen.result("meets").message


@pytest.mark.parametrize(("task", "found", "last"), [
    ("command: \"sh -c 'echo out; echo err >&2; exit 2'\"", "exit status 2", ("out", "err")),
    ("shell: 'seq 30; exit 7'", "exit status 7", ("29", "30")),
    ("shell: 'echo dying; kill -9 $$'", "ended by signal SIGKILL", ("dying",)),
])
def test_a_failed_command_says_how_it_ended_and_what_it_said_last(start: Start, task: str, found: str,
                                                                   last: tuple[str, ...]) -> None:
    seen = start(f"- hosts: all\n  gather_facts: false\n  tasks:\n    - name: fails\n      {task}\n")
    result = seen.result("fails")
    assert result.found == found
    assert result.output[-len(last):] == last
    [block] = failure_blocks([result])
    assert f"        found     {found}" in block
    assert block[-1] == f"        | {last[-1]}"
