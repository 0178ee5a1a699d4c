"""The lab engine: a small server of ours behind the command lines of the real engines.

`OVERLAY` is laid into an environment as it is: `bin/` beside the interpreter, `site-packages/` into its packages.
"""

from __future__ import annotations

from pathlib import Path

OVERLAY = Path(__file__).parent / "overlay"
