"""The same fifty tasks for every engine: 10 directories, 20 templates, 10 lines in a file, 5 commands, 5 links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = "/home/ops/bench"
TEMPLATE = """# {{ name }} on {{ host }}
listen = 0.0.0.0:{{ port }}
{% for worker in range(8) %}
worker.{{ worker }} = {{ host }}-{{ worker }}
{% endfor %}
"""


def directories() -> list[str]:
    return [f"{ROOT}/d{number}" for number in range(10)]


def templates() -> list[tuple[str, str, int]]:
    """Destination, name and port of each."""
    return [(f"{ROOT}/d{number % 10}/page{number}.conf", f"page{number}", 8000 + number) for number in range(20)]


def lines() -> list[str]:
    return [f"option{number} = {number * number}" for number in range(10)]


def commands() -> list[tuple[str, str, str]]:
    """Command, its two operands: the file copied and the file made, which is what `creates` looks at."""
    return [("cp", f"{ROOT}/d{number}/page{number}.conf", f"{ROOT}/made{number}") for number in range(5)]


def links() -> list[tuple[str, str]]:
    """Target and link."""
    return [(f"{ROOT}/d{number}", f"{ROOT}/link{number}") for number in range(5)]


def playbook() -> list[dict[str, Any]]:
    """One play that Ansible and bringup both read."""
    tasks: list[dict[str, Any]] = [
        {"name": f"directory {path}", "file": {"path": path, "state": "directory", "mode": "0755"}}
        for path in directories()]
    tasks += [{"name": f"template {name}", "template": {"src": "page.j2", "dest": dest, "mode": "0644"},
               "vars": {"name": name, "port": port, "host": "{{ inventory_hostname }}"}}
              for dest, name, port in templates()]
    tasks += [{"name": f"line {line}", "lineinfile": {"path": f"{ROOT}/lines.conf", "line": line, "create": True,
                                                      "mode": "0644"}} for line in lines()]
    tasks += [{"name": f"command {made}", "command": {"cmd": f"{command} {source} {made}", "creates": made}}
              for command, source, made in commands()]
    tasks += [{"name": f"link {link}", "file": {"src": target, "dest": link, "state": "link"}}
              for target, link in links()]
    return [{"name": "fifty tasks", "hosts": "all", "gather_facts": False, "tasks": tasks}]


PYINFRA = '''
from pyinfra import host
from pyinfra.facts.files import File
from pyinfra.operations import files, server

import tasks50

for path in tasks50.directories():
    files.directory(name=f"directory {path}", path=path, mode="755")
for dest, name, port in tasks50.templates():
    files.template(name=f"template {name}", src="templates/page.j2", dest=dest, mode="644", port=port,
                   **{"name_": name},
                   jinja_env_kwargs={"trim_blocks": True})
for line in tasks50.lines():
    files.line(name=f"line {line}", path=f"{tasks50.ROOT}/lines.conf", line=line)
for command, source, made in tasks50.commands():
    server.shell(name=f"command {made}", commands=[f"{command} {source} {made}"],
                 _if=lambda made=made: not host.get_fact(File, path=made))
for target, link in tasks50.links():
    files.link(name=f"link {link}", path=link, target=target)
'''


def write(folder: Path) -> None:
    """Write the playbook with its template, and the same as a pyinfra deploy, into a folder."""
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    (folder / "play.yml").write_text(json.dumps(playbook(), indent=1) + "\n")
    (folder / "templates/page.j2").write_text(TEMPLATE)
    pyinfra = folder / "pyinfra"
    (pyinfra / "templates").mkdir(parents=True, exist_ok=True)
    (pyinfra / "tasks50.py").write_text(Path(__file__).read_text())
    (pyinfra / "deploy.py").write_text(PYINFRA)
    # pyinfra takes `name` for the operation's own, and knows the host under another name
    text = TEMPLATE.replace("{{ name }}", "{{ name_ }}").replace("{{ host }}", "{{ host.data.machine }}")
    (pyinfra / "templates/page.j2").write_text(text)
