"""What is refused before any host is contacted, each with its place and the nearest right name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.cli.modules import module_table
from bringup.playbook.loading import Loaded, load_playbook
from bringup.playbook.selection import Selection
from bringup.playbook.templating import Engine


def load(folder: Path, text: str, tags: tuple[str, ...] = (), skip: tuple[str, ...] = (),
         extra_vars: dict[str, object] | None = None) -> Loaded:
    path = folder / "play.yml"
    path.write_text(text)
    return load_playbook(path, module_table(), Engine(), selection=Selection.of(tags, skip), extra_vars=extra_vars)


def refused(folder: Path, text: str, **more: object) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, text, **more)  # type: ignore[arg-type]
    return str(caught.value)


def play(tasks: str, more: str = "") -> str:
    body = "".join(f"    {line}\n" for line in tasks.strip("\n").splitlines())
    return f"- hosts: all\n{more}  tasks:\n{body}"


@pytest.mark.parametrize(("text", "line", "said"), [
    ("- {commad: id}", 3, "nearest: command"),
    ("- {command: id, whn: true}", 3, "nearest: when"),
    ("- {command: id, async: 5}", 3, "not supported"),
    ("- {command: id, throttle: 5}", 3, "throttle"),
    ("- {file: {pth: /x}}", 3, "nearest: path"),
    ("- {file: {state: directory}}", 3, "needs the argument `path`"),
    ("- {file: {path: /x, state: directry}}", 3, "nearest: directory"),
    ("- {file: {path: /x, mode: 644}}", 3, 'write "0644"'),
    ("- {file: {path: /x, recurse: perhaps}}", 3, "takes yes or no"),
    ("- {wait_for: {port: http}}", 3, "takes a whole number"),
    ("- {command: id, copy: {}}", 3, "one module"),
    ("- {name: nothing}", 3, "a task without a module"),
    ("- {command: id, loop: 5}", 3, "takes a list"),
    ("- {command: id, loop: [1], with_items: [1]}", 3, "two loops"),
    ("- {command: id, with_itmes: [1]}", 3, "nearest: with_items"),
    ("- {command: id, loop: [1], loop_control: {lable: x}}", 3, "nearest: label"),
    ("- {command: id, register: 'a b'}", 3, "cannot be registered"),
    ("- {command: id, notify: nobody}", 3, "no handler `nobody`"),
    ("- {command: id, when: 'a =='}", 3, "not a valid template"),
    ("- {command: 'echo {{ a | nosuch }}'}", 3, "filter `nosuch`"),
    ("- {command: id, vars: {a-b: 1}}", 3, "not a valid variable name"),
    ("- {command: id, become: perhaps}", 3, "takes yes or no"),
    ("- {command: id, become_method: su}", 3, "become_method"),
    ("- {command: id, tags: '{{ x }}'}", 3, "template in tags"),
    ("- {command: id, retries: many}", 3, "takes a number"),
    ("- {copy: {src: nofile, dest: /x}}", 3, "no file `nofile`"),
    ("- {template: {src: nofile.j2, dest: /x}}", 3, "no file `nofile.j2`"),
    ("- {include_tasks: other.yml}", 3, "no file of tasks `other.yml`"),
    ("- {import_tasks: other.yml}", 3, "no file of tasks `other.yml`"),
    ("- {include_role: {name: nobody}}", 3, "no role `nobody`"),
    ("- {include_vars: none.yml}", 3, "no file of variables"),
    ("- {include_role: {nam: x}}", 3, "nearest: name"),
    ("- {community.general.ufw: {}}", 3, "not supported"),
    ("- {ansible.builtin.file: {path: /x, stat: absent}}", 3, "nearest: state"),
    ("- {meta: flush_handler}", 3, "nearest: flush_handlers"),
    ("- just text", 3, "must be a mapping"),
    ("- block:\n    - {commad: id}", 4, "nearest: command"),
    ("- {block: [], reskue: []}", 3, "nearest: rescue"),
    ("- {listen: x, command: id}", 3, "belongs to handlers"),
])
def test_tasks(tmp_path: Path, text: str, line: int, said: str) -> None:
    shown = refused(tmp_path, play(text))
    assert said in shown
    assert f"play.yml:{line}" in shown


@pytest.mark.parametrize(("text", "said"), [
    ("- {host: all}", "is `host` meant?"),
    ("- {hosts: all, gather_fact: false}", "nearest: gather_facts"),
    ("- {hosts: all, strategy: fre}", "nearest: free"),
    ("- {hosts: all, serial: some}", "takes a number"),
    ("- {hosts: all, vars_prompt: []}", "--extra-vars"),
    ("- {hosts: all, order: shuffle}", "not supported"),
    ("- {hosts: all, vars_files: [none.yml]}", "no file of variables"),
    ("- {hosts: all, max_fail_percentage: few}", "takes a number"),
    ("- {hosts: all, roles: [nobody]}", "no role `nobody`"),
    ("- {hosts: '{{ where }}'}", "must be known before hosts are"),
    ("- {hosts: all, tasks: {}}", "list of tasks"),
    ("- {import_playbook: none.yml}", "no playbook `none.yml`"),
    ("hosts: all", "a playbook is a list of plays"),
    ("", "is empty"),
    ("- {hosts: all, hosts: all}", "stands twice"),
])
def test_plays(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    shown = refused(tmp_path, play("- {commad: id}\n- {file: {pth: /x}}\n- {copy: {src: nofile, dest: /x}}"))
    assert [f"play.yml:{line}" in shown for line in (3, 4, 5)] == [True] * 3


def test_nearest_file_and_role(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "motd.txt").write_text("x")
    (tmp_path / "roles" / "python_env" / "tasks").mkdir(parents=True)
    assert "nearest: motd.txt" in refused(tmp_path, play("- {copy: {src: motd.tx, dest: /x}}"))
    assert "nearest: python_env" in refused(tmp_path, "- {hosts: all, roles: [python-env]}")


def test_roles_are_checked_where_they_are_written(tmp_path: Path) -> None:
    tasks = tmp_path / "roles" / "one" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text("- name: fine\n  command: id\n- name: wrong\n  comand: id\n")
    shown = refused(tmp_path, "- {hosts: all, roles: [one]}")
    assert "roles/one/tasks/main.yml:4" in shown
    (tmp_path / "roles" / "one" / "library").mkdir()
    assert "library in a role are not supported" in refused(tmp_path, "- {hosts: all, roles: [one]}")


def test_roles_that_depend_on_each_other_in_a_circle(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / "roles" / name / "meta").mkdir(parents=True)
        (tmp_path / "roles" / name / "meta" / "main.yml").write_text(f"dependencies: [{other}]\n")
    assert "circle" in refused(tmp_path, "- {hosts: all, roles: [one]}")


def test_a_file_of_tasks_that_imports_itself(tmp_path: Path) -> None:
    (tmp_path / "again.yml").write_text("- import_tasks: again.yml\n")
    assert "imports itself" in refused(tmp_path, play("- import_tasks: again.yml"))
    (tmp_path / "cond.yml").write_text("- include_tasks: cond.yml\n  when: false\n")
    assert load(tmp_path, play("- include_tasks: cond.yml")).playbook.plays


def test_tags_are_known(tmp_path: Path) -> None:
    text = play("- {command: id, tags: [alpha, beta]}\n- {command: id}")
    assert "nearest: alpha" in refused(tmp_path, text, tags=("alphq",))
    assert "nearest: beta" in refused(tmp_path, text, skip=("bet",))
    selected = [task.selected for task in load(tmp_path, text, tags=("alpha",)).playbook.plays[0].tasks()]
    assert selected == [True, False]


@pytest.mark.parametrize(("tags", "skip", "own", "wanted"), [
    ("", "", "", True), ("", "", "never", False), ("never", "", "never", True), ("a", "", "a", True),
    ("a", "", "b", False), ("a", "", "always", True), ("", "a", "a", False), ("", "always", "always", False),
    ("tagged", "", "a", True), ("tagged", "", "", False), ("untagged", "", "", True), ("untagged", "", "a", False),
    ("a", "", "a,never", True), ("", "tagged", "a", False), ("", "untagged", "", False),
    ("all", "a", "a,always", False),
])
def test_selection(tags: str, skip: str, own: str, wanted: bool) -> None:
    assert Selection.of([tags], [skip]).wants(frozenset(part for part in own.split(",") if part)) is wanted


@pytest.mark.parametrize(("text", "args"), [
    ("- command: echo hi chdir=/tmp creates=/x", {"cmd": "echo hi", "chdir": "/tmp", "creates": "/x"}),
    ("- command: echo a=b", {"cmd": "echo a=b"}),
    ("- file: path=/x state=directory", {"path": "/x", "state": "directory"}),
    ("- file: path='/a b' state=touch", {"path": "/a b", "state": "touch"}),
    ("- file: {dest: /x}", {"path": "/x"}),
    ("- action: file path=/x", {"path": "/x"}),
    ("- action: {module: file, path: /x}", {"path": "/x"}),
    ("- {command: id, args: {chdir: /tmp}}", {"cmd": "id", "chdir": "/tmp"}),
    ("- command: {argv: [a, b]}", {"argv": ["a", "b"]}),
    ("- ansible.builtin.command: id", {"cmd": "id"}),
    ("- debug: msg='{{ a }} b'", {"msg": "{{ a }} b"}),
])
def test_arguments(tmp_path: Path, text: str, args: dict[str, object]) -> None:
    assert dict(load(tmp_path, play(text)).playbook.plays[0].tasks()[0].args) == args


def test_octal_modes_are_modes(tmp_path: Path) -> None:
    for written in ("0644", "'644'", "0o644", "'u=rw,g=r'"):
        assert load(tmp_path, play(f"- file: {{path: /x, mode: {written}}}"))


def test_keywords_go_down(tmp_path: Path) -> None:
    text = play("- block:\n    - {command: id, when: b, tags: [t2], environment: {B: 2}, become: false}\n"
                "  when: a\n  tags: t1\n  environment: {A: 1}\n  ignore_errors: true", "  become: true\n")
    words = load(tmp_path, text).playbook.plays[0].tasks()[0].keywords
    assert (words.when, words.tags, words.become, words.ignore_errors) == (("a", "b"), {"t1", "t2"}, False, True)
    assert [dict(table) for table in words.environment] == [{"A": 1}, {"B": 2}]


def test_hosts_may_come_from_extra_vars(tmp_path: Path) -> None:
    assert load(tmp_path, "- hosts: '{{ where }}'", extra_vars={"where": "head"}).playbook.plays[0].hosts == "head"
