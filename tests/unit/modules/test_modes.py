"""Symbolic modes mean what chmod makes of them."""

import random
import subprocess

import pytest

from bringup.agent.modules import _modes
from bringup.agent.task import Failure


def _clauses(rng):
    out = []
    for _ in range(rng.randint(1, 3)):
        who = "".join(sorted(rng.sample("ugo", rng.randint(1, 3)))) if rng.random() < 0.8 else "a"
        what = rng.choice("ugo") if rng.random() < 0.2 else "".join(rng.sample("rwxX", rng.randint(0, 4)))
        out.append(who + rng.choice("+-=") + what)
    return ",".join(out)


@pytest.mark.parametrize("seed", range(60))
def test_symbolic_modes_as_chmod_does(tmp_path, seed):
    rng = random.Random(seed)
    folder = rng.random() < 0.5
    path = tmp_path / "x"
    path.mkdir() if folder else path.write_text("")
    before, text = rng.randrange(0o1000), _clauses(rng)
    path.chmod(before)
    expected = _modes.parse(text, before, folder)
    subprocess.run(["chmod", text, str(path)], check=True)
    assert oct(path.stat().st_mode & 0o7777) == oct(expected), (text, oct(before), folder)


@pytest.mark.parametrize("text, before, after", [
    ("0644", 0o777, 0o644), ("644", 0o777, 0o644), ("u+s", 0o755, 0o4755), ("g+s", 0o755, 0o2755),
    ("o+t", 0o777, 0o1777), ("u=rwx,g=rx,o=", 0o4777, 0o750), ("a-x", 0o755, 0o644), (0o640, 0, 0o640),
])
def test_modes(text, before, after):
    assert oct(_modes.parse(text, before, False)) == oct(after)


@pytest.mark.parametrize("text", ["rwx", "u=rwq", "z+x", "9999", ""])
def test_what_is_no_mode(text):
    with pytest.raises(Failure, match="mode"):
        _modes.parse(text, 0o644, False)
