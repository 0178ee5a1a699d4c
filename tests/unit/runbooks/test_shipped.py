"""The runbooks that come with bringup: each can be read, and every command in them is one that bringup has."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest
import yaml
from invoke.parser import Parser

from bringup.cli.namespace import namespace
from bringup.cli.runbook import flags_of
from bringup.gates.definition import KINDS
from bringup.preflight import registry
from bringup.runbooks.document import Runbook, load
from bringup.runbooks.filling import Filling, filled
from bringup.serving.causes import KNOWN
from bringup.serving.contract.checks import CHECKS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "runbooks").glob("*.md"))
WANTED = {"endpoint-down", "rank-down", "gpu-lost", "rdma-link-down", "out-of-memory", "tool-calls-malformed",
          "slow-first-token", "disk-full", "node-replaced", "rollback", "npu-alarm", "full-restart", "key-changed",
          "spare-takes-over"}
NAMES = {path.stem for path in FILES}
FILLING = Filling({"node": "gpu03", "spare": "gpu17"}, ("h200.yml",), (("--vault-password-file", "v"),), flags_of)


def test_all_are_there() -> None:
    assert WANTED <= NAMES


def test_the_table_of_xid_codes_is_the_one_that_preflight_judges_by() -> None:
    codes = yaml.safe_load((ROOT / "bringup/preflight/data/xid.yml").read_text())
    tell = load(ROOT / "runbooks/gpu-lost.md").tell
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tell.splitlines() if line.startswith("|")]
    assert rows[2:] == [[str(code), row["verdict"], row["means"], row["action"]] for code, row in codes.items()]


def commands_of(book: Runbook) -> list[str]:
    """Every command of bringup that a runbook runs, or tells a person to type."""
    told = re.findall(r"`(invoke [^`]+)`", "\n".join([book.tell, *(step.text for step in book.steps)]))
    for step in (filled(step, FILLING) for step in book.steps):
        for command in step.commands:
            lines = [*command.text.splitlines(), *command.check.otherwise.splitlines()]
            told += [line[line.index("invoke "):] for line in lines if re.search(r"(^|\s)invoke ", line)]
    return told


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_command_is_one_that_bringup_has(path: Path) -> None:
    book = load(path)
    assert not book.steps[-1].commands[-1].by_hand, "the last step proves that it is mended"
    assert book.tell and "Findings:" not in book.tell
    assert len(book.signs) == path.read_text().split("Findings:")[1].split("\n\n")[0].count("`") // 2
    for command in commands_of(book):
        assert "$" not in command
        _, *words = shlex.split(command)
        parsed = Parser(contexts=namespace().to_contexts()).parse_argv(words)
        assert [context.name for context in parsed if context.name], command
        if words[0] == "runbook":
            assert words[1] in NAMES, command


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_command_that_stops_what_serves_is_marked(path: Path) -> None:
    for step in load(path).steps:
        for command in step.commands:
            words = command.text.split()
            stops = words[1] in ("stop", "restart", "provision", "rollback", "release.gc") \
                and not {"--rehearse", "--check"} & set(words)
            assert command.by_hand or command.danger == stops, command.text
            if command.danger:
                assert "--yes" in words, "it was asked for already"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_finding_is_one_that_something_makes(path: Path) -> None:
    known = set(registry.checks())
    for source in (ROOT / "bringup").rglob("*.py"):
        known |= set(re.findall(r'(?:Finding|Check)\("([a-z.-]+)"', source.read_text()))
    known |= {f"contract.{check.id}" for check in CHECKS} | {f"cause.{cause.key}" for cause in KNOWN if cause.echo < 2}
    for sign in load(path).signs:
        pattern = re.compile(re.escape(sign.check).replace(r"\*", ".*"))
        assert any(pattern.fullmatch(name) for name in known), f"nothing makes {sign.check}"


def test_what_status_finds_has_a_runbook() -> None:
    signs = {sign.check for path in FILES for sign in load(path).signs}
    made = {name for file in ("survey", "glance") for name in re.findall(
        r'Finding\("([a-z.-]+)"', (ROOT / f"bringup/releases/{file}.py").read_text())}
    assert "process.dead" in made and made - signs == {"traffic.out"}, "a person led clients away: no trouble"


ONLY = {"preflight": sorted({*registry.checks(), *(name.split(".")[0] for name in registry.checks())}),
        "verify": [check.id for check in CHECKS], "gate": sorted(KINDS)}
"""What `--only` of a verb takes."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_checks_that_are_named_exist(path: Path) -> None:
    for command in commands_of(load(path)):
        _, verb, *words = shlex.split(command)
        for name in words[words.index("--only") + 1].split(",") if "--only" in words else ():
            assert fnmatch.filter(ONLY[verb], name), command


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_command_that_is_run_never_waits_for_a_person_nor_for_ever(path: Path) -> None:
    """Commands run without a terminal, so that one which asks would end with 4, and one that follows would not end."""
    for step in load(path).steps:
        for command in (command for command in step.commands if not command.by_hand):
            verb, words = command.text.split()[1], set(command.text.split())
            assert not words & {"--follow", "--ask-become-pass", "--ask-pass", "--ask-api-key"}, command.text
            assert "--yes" in words or verb not in ("start", "stop", "restart", "provision", "rollback"), command.text
            assert "--inventory" in words, command.text
