"""How many ranks a command line makes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.serving.engines.facts import Engine
from bringup.serving.versions import flag_value


def world_size(engine: Engine, words: Sequence[str]) -> int:
    """Ranks of a replica, from the sizes in its command line: one rank a device in use."""
    sizes = []
    for names in engine.size_flags:
        found = [value for name in names if (value := flag_value(list(words), name)) is not None]
        sizes.append(int(found[-1]) if found and found[-1].isdigit() else 1)
    return math.prod(sizes)
