"""Tests that ask ansible-core itself, not the answers that are kept of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

asks_ansible = pytest.mark.skipif(
    not (Path(sys.executable).parent / "ansible-inventory").exists(),
    reason="asks ansible-core, which is not installed here: pip install -e '.[judges]'")
