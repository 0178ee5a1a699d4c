"""What a person at a terminal meets: a real pty, keys pressed in it, what it shows; and the same without a terminal."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from site_project import HOSTS, INVOKE, Site, wait_for

ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONG = """\
- hosts: all
  gather_facts: false
  tasks:
    - {name: long, command: sleep 4711}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    made.good("provision")
    yield made
    made.down()


class Terminal:
    """A verb typed in a terminal of `columns` by 24."""

    def __init__(self, site: Site, *words: str, columns: int = 80, **variables: str) -> None:
        environment = {name: value for name, value in site.environment().items() if name != "COLUMNS"}
        environment |= {"TERM": "xterm", **variables}
        self.child = pexpect.spawn(str(INVOKE), list(words), cwd=str(site.folder), env=environment, encoding="utf-8",
                                   dimensions=(24, columns), timeout=60)
        self.child.logfile_read = io.StringIO()

    def end(self) -> int:
        """Its exit status."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else 128 + self.child.signalstatus)

    @property
    def raw(self) -> str:
        return str(self.child.logfile_read.getvalue())

    @property
    def text(self) -> str:
        return ESCAPE.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """Every line that stood on the screen, also those drawn over later."""
        return re.split(r"[\r\n]+", ESCAPE.sub("", self.raw))


def sleepers() -> list[str]:
    return subprocess.run(["pgrep", "-f", "^sleep 4711"], text=True, capture_output=True).stdout.split()


@pytest.mark.parametrize("columns", [80, 160])
def test_the_live_view_fits_and_goes(site: Site, columns: int) -> None:
    terminal = Terminal(site, "provision", "--yes", columns=columns)
    assert terminal.end() == 0
    assert max(len(line) for line in terminal.lines) <= columns
    assert COLOUR.search(terminal.raw)
    drawn = [line for line in terminal.lines if re.match(r"\S environments +3 hosts", line)]
    assert drawn, terminal.text  # the stage under way was shown, and its line replaced it
    assert [line for line in terminal.lines if line.startswith("  3 environments   tiny ")]
    assert "the GPUs are replayed" in " ".join(terminal.text.split())
    assert "ready    http" in terminal.text
    assert "\x1b[?25h" in terminal.raw[terminal.raw.rfind("\x1b[?25l"):]  # the cursor is back


def test_no_color_colours_nothing(site: Site) -> None:
    terminal = Terminal(site, "status", NO_COLOR="1")
    assert terminal.end() == 0
    terminal = Terminal(site, "provision", "--yes", NO_COLOR="1")
    assert terminal.end() == 0
    assert not COLOUR.search(terminal.raw)
    assert "ready    http" in terminal.text


def test_a_dumb_terminal_and_a_pipe_get_lines_without_escapes(site: Site) -> None:
    terminal = Terminal(site, "provision", "--yes", TERM="dumb")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.raw
    assert max(len(line) for line in terminal.lines) <= 80
    piped = site.good("provision", "--yes")
    assert "\x1b" not in piped and "\r" not in piped
    assert "ready    http" in piped


@pytest.mark.full
def test_a_question_is_asked_and_no_leaves_what_serves(site: Site) -> None:
    before = site.pids()
    try:
        for answer, status in (("n", 4), ("", 4), ("y", 0)):
            terminal = Terminal(site, "restart")
            terminal.child.expect_exact("[y/N] ")
            assert "down about" in terminal.text  # says what it costs before it asks
            terminal.child.sendline(answer)
            assert terminal.end() == status, terminal.text
            assert (site.pids() == before) is (answer != "y")
    finally:
        site.good("provision", "--yes")


def test_ctrl_c_ends_the_command_and_gives_up_the_locks(site: Site, tmp_path: Path) -> None:
    (tmp_path / "long.yml").write_text(LONG)
    terminal = Terminal(site, "playbook", str(tmp_path / "long.yml"))
    assert wait_for(lambda: len(sleepers()) == len(HOSTS))
    terminal.child.sendintr()
    assert terminal.end() == 130
    assert "interrupted (130)" in terminal.text
    assert "Traceback" not in terminal.text
    assert wait_for(lambda: not sleepers(), 5)
    (tmp_path / "next.yml").write_text(LONG.replace("sleep 4711", "/bin/true"))
    assert "changed=1" in site.good("playbook", str(tmp_path / "next.yml"))


def test_ctrl_c_twice_ends_it_too(site: Site, tmp_path: Path) -> None:
    (tmp_path / "long.yml").write_text(LONG)
    terminal = Terminal(site, "playbook", str(tmp_path / "long.yml"))
    assert wait_for(lambda: len(sleepers()) == len(HOSTS))
    terminal.child.sendintr()
    terminal.child.sendintr()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert wait_for(lambda: not sleepers(), 10)


@pytest.mark.full
@pytest.mark.parametrize("stage", ["environments", "start"])  # the others are over before a key arrives
def test_ctrl_c_in_a_stage_and_the_next_run_completes(site: Site, stage: str) -> None:
    site.write(load_seconds=2.0)
    site.run("stop", "--yes")
    try:
        terminal = Terminal(site, "provision", "--yes")
        terminal.child.expect(rf"\S {stage} +3 hosts")
        terminal.child.sendintr()
        assert terminal.end() == 130
        assert f", {stage}: " in " ".join(terminal.text.split())
        assert "Traceback" not in terminal.text
        site.good("provision", "--yes")
        assert all(node["state"] == "running" for node in site.nodes().values())
    finally:
        site.write()


def test_a_reader_that_leaves_does_not_end_a_run(site: Site) -> None:
    piped = subprocess.run(["bash", "-c", f'"{INVOKE}" restart --yes | head -1; echo "${{PIPESTATUS[0]}}"'],
                           cwd=site.folder, env=site.environment(), text=True, capture_output=True, timeout=60)
    assert piped.stdout.split()[-1] == "0"
    assert "Traceback" not in piped.stderr
    assert all(node["state"] == "running" for node in site.nodes().values())
    followed = subprocess.run(["bash", "-c", f'"{INVOKE}" logs --follow | head -2; echo "${{PIPESTATUS[0]}}"'],
                              cwd=site.folder, env=site.environment(), text=True, capture_output=True, timeout=30)
    assert followed.stdout.split()[-1] == "0"


@pytest.mark.full
def test_check_says_what_would_be_and_nothing_else(site: Site) -> None:
    site.write()
    site.run("stop", "--yes")
    try:
        shown = site.good("provision", "--check")
        for told in ("would be started (nothing runs)", "unknown: nothing runs there yet", "would serve at http",
                     "skipped: bringup_privileged is false"):
            assert told in shown
        assert "ready  " not in shown
        assert "nothing runs, nothing would be stopped" in site.good("stop", "--check")
    finally:
        site.good("provision", "--yes")
    assert "ready    http" in site.good("provision", "--check")  # what serves, serves
    site.write(load_seconds=0.9)
    changed = site.good("provision", "--check")
    assert "would be made" in changed and "would be stopped and started" in changed and "ready  " not in changed
    site.write()
