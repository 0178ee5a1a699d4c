"""Ask ansible-playbook for the answer to each case: `python tests/unit/run/judge/ask.py [CASE...]`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = HERE.parent / "cases"
ANSWERS = HERE.parent / "answers"


def arguments(case: Path) -> list[str]:
    """Further arguments that stand in the first line of a case, after `# args:`."""
    first = case.read_text().splitlines()[0]
    return first.removeprefix("# args:").split() if first.startswith("# args:") else []


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in CASES.glob("*.yml") if path.stem != "hosts")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "record.json"
            environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "recorder", "RECORD": str(record),
                           "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "plugin"), "ANSIBLE_LOCALHOST_WARNING": "0",
                           "ANSIBLE_DEPRECATION_WARNINGS": "0", "ANSIBLE_RETRY_FILES_ENABLED": "0"}
            program = Path(sys.executable).parent / "ansible-playbook"
            done = subprocess.run([str(program), "-i", str(CASES / "hosts.yml"), str(CASES / f"{name}.yml"),
                                   "-e", f"work={folder}", *arguments(CASES / f"{name}.yml")],
                                  env=environment, capture_output=True, text=True, check=False)
            answer = json.loads(record.read_text()) if record.exists() else {"hosts": {}, "recap": {}}
            answer["rc"] = done.returncode
            text = json.dumps(answer, indent=1, sort_keys=True).replace(folder, "WORK")
            (ANSWERS / f"{name}.json").write_text(text + "\n")
            print(name, done.returncode, done.stderr.strip()[-300:])


if __name__ == "__main__":
    main()
