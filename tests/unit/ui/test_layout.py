"""What a run prints: the lines of both layouts, folding of failures, widths, secrets."""

from __future__ import annotations

import io

import pytest

from bringup.base import events
from bringup.base.origin import Origin
from bringup.base.results import Result, Status
from bringup.base.secrets import MASK, SCRUBBER
from bringup.ui.layout import Layout
from bringup.ui.plain import Plain

HOSTS = ("gpu01", "gpu02", "gpu03")


def shown(layout: Layout, *happened: events.Event) -> list[str]:
    return [line.text for event in happened for line in layout.lines(event)]


def result(host: str, status: Status = Status.OK, **more: object) -> Result:
    return Result(host=host, task="Copy it", status=status, origin=Origin("roles/x/tasks/main.yml", 21, 3), **more)  # type: ignore[arg-type]


def test_a_stage_is_one_line_with_its_time_at_the_right_edge() -> None:
    layout = Layout("stages", width=80)
    lines = shown(
        layout,
        events.PlayStarted("environments", 3, 7, HOSTS),
        events.StageSummary("glm51-vllm", "built on gpu01, spread to 15"),
        events.PlayEnded("environments", 3, 192.0),
    )
    assert len(lines) == 1
    assert lines[-1].startswith("  3 environments   glm51-vllm    built on gpu01")
    assert lines[-1].endswith("3 m 12 s")
    assert all(len(line) <= 80 for line in lines)


def test_long_stage_text_wraps_under_itself() -> None:
    layout = Layout("stages", width=80)
    lines = shown(layout, events.PlayStarted("start", 7, 8, HOSTS), events.StageSummary("r1", "word " * 30),
                  events.PlayEnded("start", 7, 1.0))
    assert len(lines) > 2
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].endswith("1.0 s")


def test_a_stage_without_summary_counts_hosts() -> None:
    layout = Layout("stages")
    lines = shown(layout, events.PlayStarted("host settings", 2, 7, HOSTS),
                  events.TaskEnded(result("gpu01", Status.CHANGED)), events.TaskEnded(result("gpu02")),
                  events.PlayEnded("host settings", 2, 1.2))
    assert "1 changed" in lines[-1]


def test_equal_failures_of_many_hosts_are_one_block() -> None:
    layout = Layout("stages")
    lines = shown(layout, events.PlayStarted("x", 1, 1, HOSTS),
                  *(events.TaskEnded(result(host, Status.FAILED, message="no space left", expected="1 MB",
                                            found="0 MB", output=("a", "b"), next="df -h")) for host in HOSTS),
                  events.RunEnded(1, 2.0))
    text = "\n".join(lines)
    assert text.count("FAILED") == 1
    assert 'FAILED  gpu[01-03]  in task "Copy it" (roles/x/tasks/main.yml:21)' in text
    for part in ("no space left", "expected  1 MB", "found     0 MB", "| a", "next      df -h"):
        assert part in text
    assert "a step failed (1)" in lines[-1]


def test_different_failures_stay_apart() -> None:
    layout = Layout("stages")
    lines = shown(layout, events.TaskEnded(result("gpu01", Status.FAILED, message="one")),
                  events.TaskEnded(result("gpu02", Status.LOST, message="two")), events.RunEnded(3, 2.0))
    assert sum(line.startswith(("FAILED", "LOST")) for line in lines) == 2


def test_tasks_layout_prints_a_line_a_task_and_a_recap() -> None:
    layout = Layout("tasks")
    started = events.TaskStarted("Copy it", Origin("roles/x/tasks/main.yml", 21, 3), HOSTS)
    lines = shown(layout, started, events.TaskEnded(result("gpu01")), events.TaskEnded(result("gpu02")))
    assert lines == []
    lines = shown(layout, events.TaskEnded(result("gpu03", Status.CHANGED)),
                  events.RunEnded(0, 1.0, recap={"gpu01": {"ok": 1}, "gpu03": {"ok": 1, "changed": 1}}))
    assert lines[0] == "TASK Copy it  ok 2 · changed 1 gpu03"
    assert any(line.startswith("gpu03 : ok=1 changed=1 unreachable=0 failed=0") for line in lines)


def test_progress_in_a_pipe_is_not_repeated() -> None:
    layout = Layout("stages", piped=True)
    lines = shown(layout, *(events.Progress("r1", "loading") for _ in range(5)), events.Progress("r1", "loading 2"),
                  events.Progress("r1", "ready", done=True))
    assert lines == ["    r1  loading", "    r1  ready"]


def test_control_characters_of_a_host_are_shown_not_sent() -> None:
    layout = Layout("tasks", verbose=True)
    (line,) = shown(layout, events.Line("gpu01", "t", "a\x1b[2Jb"))
    assert "\x1b" not in line
    assert "\\x1b" in line


def test_a_diff_is_unified_and_hidden_with_no_log() -> None:
    layout = Layout("tasks")
    diff = ({"before": "a\n", "after": "b\n", "before_header": "/etc/x"},)
    assert "-a" in shown(layout, events.TaskEnded(result("gpu01", Status.CHANGED, diff=diff)))
    assert shown(layout, events.TaskEnded(result("gpu01", Status.CHANGED, diff=diff, no_log=True))) == []


def test_secrets_are_masked_on_the_way_out() -> None:
    SCRUBBER.add("hunter2-very-secret")
    stream = io.StringIO()
    plain = Plain(Layout("stages"), stream, colour=False)
    plain(events.Note("the password is hunter2-very-secret"))
    assert stream.getvalue() == f"NOTE  the password is {MASK}\n"


@pytest.mark.parametrize("colour", [True, False])
def test_colour_only_wraps_lines(colour: bool) -> None:
    stream = io.StringIO()
    plain = Plain(Layout("stages"), stream, colour=colour)
    plain(events.Note("careful", level="warn"))
    assert ("\x1b[33m" in stream.getvalue()) is colour
    assert "WARN  careful" in stream.getvalue()


def test_a_stage_in_which_roles_only_say_why_is_skipped_with_that_reason() -> None:
    layout = Layout("stages", width=80)
    lines = shown(layout, events.PlayStarted("host settings", 2, 7, HOSTS),
                  *(events.TaskEnded(result(host, Status.SKIPPED, message="when: x")) for host in HOSTS),
                  *(events.TaskEnded(result(host, module="debug", message="no privilege here")) for host in HOSTS),
                  events.PlayEnded("host settings", 2, 0.1))
    assert "skipped: no privilege here" in lines[-1]


def test_talk_beside_work_is_no_skip() -> None:
    layout = Layout("stages", width=80)
    lines = shown(layout, events.PlayStarted("host settings", 2, 7, HOSTS),
                  events.TaskEnded(result("gpu01", module="debug", message="no privilege here")),
                  events.TaskEnded(result("gpu02", module="user")), events.PlayEnded("host settings", 2, 0.1))
    assert " ok " in lines[-1]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_terminal_no_line_is_wider_than_it(width: int) -> None:
    layout = Layout("stages", width=width, piped=False)
    long = "words of the engine " * 20
    lines = shown(
        layout, events.RunStarted("provision", "inventory/" + "x" * 30, "7f3a91", "ops@deploy1", HOSTS, headline=long),
        events.PlayStarted("start", 5, 7, HOSTS), events.Note(long), events.Note(long, host="gpu01", level="warn"),
        events.TaskEnded(result("gpu01", Status.FAILED, message=long, expected=long, found=long, output=(long,),
                                next=long)),
        events.StageSummary("r1", "1 started in 4.7 s " * 9), events.PlayEnded("start", 5, 1.0),
        events.Ready(("http://198.18.0.11:8000/v1",), "zai-org/GLM-5.1", "r0042", "r0041", (long,), (long,)),
        events.RunEnded(1, 2.0, next=(long,)))
    assert max(len(line) for line in lines) <= width
    assert not [line for line in lines if line.strip() in ("s", "9.9 s")]  # no unit on a line of its own
    hung = [line for line in lines if line.startswith("        | ")]
    assert len(hung) > 2  # what hangs keeps its bar


def test_in_a_pipe_the_lines_of_a_failure_stay_whole() -> None:
    layout = Layout("stages", width=80)
    lines = shown(layout, events.TaskEnded(result("gpu01", Status.FAILED, message="m", output=("word " * 60,))),
                  events.RunEnded(1, 2.0))
    assert any("word " * 59 in line for line in lines)


def test_an_interrupted_run_says_where_and_what_to_type() -> None:
    lines = shown(Layout("stages", width=80, piped=False), events.PlayStarted("start", 5, 7, HOSTS),
                  events.RunEnded(130, 2.0))
    text = " ".join(lines)
    assert "interrupted in stage 5, start" in text
    assert "invoke status" in text
    assert lines[-1] == "interrupted (130) after 2.0 s"


def test_debug_says_its_text_once_for_hosts_that_say_the_same() -> None:
    layout = Layout("tasks")
    said = [result("gpu01", message="a\nb", module="debug"), result("gpu02", message="a\nb", module="debug"),
            result("gpu03", message="other", module="debug")]
    lines = shown(layout, events.TaskStarted("Copy it", Origin("roles/x/tasks/main.yml", 21, 3), HOSTS),
                  *(events.TaskEnded(one) for one in said))
    assert lines == ["TASK Copy it  ok 3", "    gpu[01-02]  a", "                b", "    gpu03  other"]
