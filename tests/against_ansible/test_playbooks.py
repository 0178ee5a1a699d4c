"""Every playbook of the corpus gives the same recap and the same files as `ansible-playbook`."""

from __future__ import annotations

from pathlib import Path

import judge
import pytest
from corpus import CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_same_as_ansible(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = judge.ansible(case, tmp_path)
    ours, printed = judge.bringup(case, tmp_path)
    found = judge.differences(theirs, ours)
    assert not found, "\n".join([*found, "", "what the runs printed:", *printed])
