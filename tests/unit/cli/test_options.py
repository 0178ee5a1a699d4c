"""Verbs: flags as text, our own exit status for wrong values, no traceback, interrupts and broken pipes."""

from __future__ import annotations

import pytest
from invoke import Collection, Program

from bringup.base.errors import ExitStatus, FindingError, InputError
from bringup.cli.options import COMMON, FORKS, FORMAT, Option, Options, guarded, verb

SEEN: list[Options] = []


@verb((*COMMON, Option("file", positional=True, help="a playbook")))
def sample(options: Options) -> int:
    """Run a sample."""
    SEEN.append(options)
    return options.number("forks") or 0


def invoke(*words: str) -> int:
    program = Program(name="sample", binary="sample", version="0", namespace=Collection(sample))
    with pytest.raises(SystemExit) as caught:
        program.run(["sample", *words])
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def run(*words: str) -> Options:
    program = Program(name="sample", binary="sample", version="0", namespace=Collection(sample))
    program.run(["sample", *words], exit=False)
    return SEEN[-1]


def test_flags_come_as_text_lists_and_switches() -> None:
    options = run("sample", "site.yml", "-i", "a.yml", "--inventory", "b.yml", "--check", "-l", "gpu01")
    assert options.file == "site.yml"
    assert options.inventory == ["a.yml", "b.yml"]
    assert options.check is True
    assert options.diff is False
    assert options.limit == "gpu01"
    assert options.forks is None


def test_dry_of_invoke_is_check() -> None:
    assert run("-R", "sample", "site.yml").check is True


def test_a_verb_ends_with_its_status() -> None:
    assert invoke("sample", "site.yml", "--forks", "5") == 5


@pytest.mark.parametrize("words", [("--forks", "many"), ("--format", "jsn"), ("--forks", "-3")])
def test_wrong_values_are_input_errors(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("sample", "site.yml", *words) == 2
    err = capsys.readouterr().err
    assert words[0] in err
    assert "nothing was contacted" in err


def test_the_nearest_choice_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    invoke("sample", "site.yml", "--format", "jsn")
    assert "--format json" in capsys.readouterr().err


def test_errors_and_interrupts_become_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    def finding() -> int:
        raise FindingError("blocked")

    def interrupted() -> int:
        raise KeyboardInterrupt

    def wrong() -> int:
        raise InputError("bad", where="f.yml")

    def fault() -> int:
        raise ValueError("unexpected")

    assert guarded(finding) == ExitStatus.FINDING
    assert guarded(interrupted) == ExitStatus.INTERRUPTED
    assert guarded(wrong) == ExitStatus.INPUT
    assert guarded(fault) == ExitStatus.STEP
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "bringup itself failed: ValueError: unexpected" in err


def test_an_option_knows_its_key() -> None:
    assert FORKS.key == "forks"
    assert Option("ask-pass").key == "ask_pass"
    assert FORMAT.choices == ("text", "json")


@pytest.mark.parametrize("words", [("--help",), ("-h",)])
def test_help_is_no_positional_value(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    SEEN.clear()
    assert invoke("sample", *words) == 0
    out = capsys.readouterr().out
    assert "sample FILE [--options]" in out
    assert "a playbook" in out
    assert not SEEN
