"""Every verb of the namespace: a one-line help, a help for each flag, and `--help` that is enough to use it."""

from __future__ import annotations

import inspect

import pytest
from invoke import Program

from bringup.cli.namespace import namespace
from bringup.cli.options import Verb

VERBS: dict[str, Verb] = {name: namespace()[name] for name in namespace().task_names}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_a_verb_says_what_it_does_and_what_its_flags_mean(name: str) -> None:
    verb = VERBS[name]
    text = inspect.getdoc(verb) or ""
    assert text.split("\n")[0].endswith("."), "the first line is the help of --list"
    for option in verb.options:
        assert option.help, f"{name} --{option.name} has no help"
        assert option.help[0] != option.help[0].upper() or not option.help[0].isalpha() or option.help[:2].isupper()


@pytest.mark.parametrize("name", sorted(VERBS))
def test_help_is_printed_whatever_a_verb_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Program(name="inv", binary="inv", namespace=namespace()).run(["inv", name, "--help"])
    assert not caught.value.code
    out = capsys.readouterr().out
    assert f" {name} " in out and "Options:" in out
    for option in VERBS[name].options:
        assert f"--{option.name}" in out or f"-{option.name} " in out
        if option.positional:
            assert f" {option.name.upper()} " in out.split("\n")[0]


@pytest.mark.parametrize(("words", "says"), [
    (("provision", "--take-over", "zz"), "six hex digits"),
    (("provision", "--limit", "lab-w1"), "cuts the replica r1"),
    (("provision", "--report", "/no-such-folder/x.json"), "there is no folder"),
    (("preflight", "--forks", "0"), "from 1 on"),
    (("provision", "--replace", "lab-w1"), "--replace takes OLD=SPARE"),
    (("provision", "--replace", "a=b", "--replace", "a=c"), "--replace names a twice"),
    (("provision", "--replace", "lab-w1=lab-w2"), "`lab-w2` serves in a replica: it cannot take the place of lab-w1"),
    (("provision", "--canary", "lab-w1", "--replace", "lab-w1=lab-w2"), "--replace is not for a canary"),
    (("rollback", "--replace", "lab-w9=lab-w2"), "`lab-w9` is a node of no replica"),
])
def test_wrong_values_contact_nothing(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.cli.lab.join_lab", lambda *given: pytest.fail("the lab was started"))
    with pytest.raises(SystemExit) as caught:
        Program(name="inv", binary="inv", namespace=namespace()).run(["inv", *words])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert says in err and err.endswith("nothing was contacted\n")
