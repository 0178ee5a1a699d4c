"""A kernel that is quick to build: a package whose import proves it, as environments find the builds of a release."""

from __future__ import annotations

from pathlib import Path

RECIPE = """\
purpose: test
uses: [compiler]
source: {folder: source}
memory_per_job: 100 MiB
commands:
  - place: |
      mkdir -p "$OUT/site/quick"
      "$CXX" -shared -fPIC -o "$OUT/site/quick/core.so" core.cpp
      echo "VALUE = 7" > "$OUT/site/quick/__init__.py"
yields: [site/quick/__init__.py, site/quick/core.so]
proof: {script: proof.py, seconds: 60}
"""
PROOF = """\
import json, os, sys
sys.path.insert(0, os.path.join(os.environ["OUT"], "site"))
import quick
print(json.dumps({"proof": "quick computes %d" % quick.VALUE}))
"""


def quick(project: Path) -> Path:
    """Write the recipe `quick` into a project; the file that its builds depend on."""
    source = project / "kernels/quick/source/core.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("int x;\n")
    (project / "kernels/quick/kernel.yml").write_text(RECIPE)
    (project / "kernels/quick/proof.py").write_text(PROOF)
    return source
