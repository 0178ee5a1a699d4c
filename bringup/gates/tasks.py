"""The fixed slice of tasks: what is asked, and the command that says whether the answer does it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.serving.contract.messages import Message
from bringup.serving.contract.traffic import as_answer

KEYS = ("id", "prompt", "messages", "tools", "calls", "check", "route")
SECONDS = 20
"""How long a checking command may take."""


@dataclass(frozen=True)
class Task:
    """`check` is a shell command: the answer comes on its standard input as JSON, status 0 says that it is right.
    `calls` is true where a tool must be called."""

    id: str
    messages: Sequence[Mapping[str, Any]]
    check: str
    tools: Sequence[Mapping[str, Any]] = ()
    calls: bool = False
    route: str | None = None
    place: str = field(default="", compare=False)


def load_tasks(path: Path, most: int) -> list[Task]:
    """The first `most` tasks of a JSONL file. Raises InputError with the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("the tasks cannot be read", where=str(path), found=str(error)) from None
    out: list[Task] = []
    names: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip() or len(out) >= most:
            continue
        task = _task(line, f"{path}:{number}")
        if task.id in names:
            raise InputError(f"the task `{task.id}` stands twice", where=task.place)
        names.add(task.id)
        out.append(task)
    if not out:
        raise InputError("holds no tasks", where=str(path), next="docs/gates.md says how they are written")
    return out


def _task(line: str, place: str) -> Task:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InputError("the line is no JSON", where=place, found=str(error)) from None
    if not isinstance(data, dict):
        raise InputError("a task is a JSON object", where=place)
    for key in data:
        if key not in KEYS:
            near = nearest(key, KEYS)
            raise InputError(f"a task knows no `{key}`", where=place, expected=", ".join(KEYS),
                             next=f"nearest: {near}" if near else None)
    messages = data.get("messages") or ([{"role": "user", "content": data["prompt"]}] if data.get("prompt") else None)
    if not data.get("id") or not messages or not data.get("check"):
        raise InputError("a task needs id, prompt (or messages) and check", where=place)
    return Task(str(data["id"]), messages, str(data["check"]), data.get("tools") or (), bool(data.get("calls")),
                data.get("route"), place)


def right(task: Task, message: Message, folder: Path) -> str | None:
    """None when the task's command finds the answer right, else what it said. It runs in `folder`."""
    try:
        text = json.dumps(as_answer(message), ensure_ascii=False)
    except ValueError as error:
        return f"the arguments are no JSON ({error})"
    try:
        done = subprocess.run(["/bin/sh", "-c", task.check], input=text, cwd=folder, capture_output=True, text=True,
                              timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"the checking command did not end within {SECONDS} s"
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[-1][:200] if said else f"the checking command ended with {done.returncode}"
