"""`invoke playbook FILE`: run any playbook of the dialect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.base.errors import ExitStatus
from bringup.base.secrets import SCRUBBER
from bringup.cli.options import COMMON, Option, Options, verb

if TYPE_CHECKING:
    from bringup.cli.running import Reading

TAGS = Option("tags", help="only tasks with one of these tags; may be given again", short="t", many=True)
SKIP_TAGS = Option("skip-tags", help="leave out tasks with one of these tags; may be given again", many=True)
TAKE_OVER = Option("take-over", help="ask this living run to stop at the end of its task, then take its hosts")

PLAYBOOK_OPTIONS = (
    Option("file", help="the playbook", positional=True),
    *COMMON,
    TAGS,
    SKIP_TAGS,
    TAKE_OVER,
    Option("syntax-check", False, "read and check, contact nothing"),
    Option("list-hosts", False, "the hosts of each play"),
    Option("list-tasks", False, "the tasks of each play"),
    Option("list-tags", False, "the tags of each play"),
)


@verb(PLAYBOOK_OPTIONS)
def playbook(options: Options) -> ExitStatus:
    """Run a playbook: plays, roles and tasks as Ansible reads them."""
    from bringup.cli.running import Reading, run_reading

    reading = Reading(options, Path(options.file).expanduser())
    if options.syntax_check or options.list_hosts or options.list_tasks or options.list_tags:
        for line in _listing(reading, options):
            print(SCRUBBER.text(line))
        return ExitStatus.DONE
    return run_reading(reading, verb="playbook", headline=str(options.file))


def _listing(reading: Reading, options: Options) -> list[str]:
    from bringup.base.text import plural
    from bringup.playbook.model import walk

    lines: list[str] = []
    plan = reading.plan()
    if options.syntax_check and not (options.list_hosts or options.list_tasks or options.list_tags):
        count = sum(len(play.tasks()) for play, _ in plan)
        return [f"{options.file}: {plural(len(plan), 'play')}, {plural(count, 'task')}, nothing wrong found"]
    for number, (play, hosts) in enumerate(plan, 1):
        lines.append(f"play {number}  {play.name}  ({play.hosts})")
        if options.list_hosts:
            lines.append(f"  hosts ({len(hosts)})")
            lines.extend(f"    {host}" for host in hosts)
        tasks = [task for section in play.sections for task in walk(section) if task.selected]
        if options.list_tasks:
            lines.append("  tasks")
            for task in tasks:
                tags = ", ".join(sorted(task.keywords.tags))
                lines.append(f"    {task.shown_name}" + (f"  [{tags}]" if tags else ""))
        if options.list_tags:
            every = sorted({tag for task in play.tasks() for tag in task.keywords.tags})
            lines.append(f"  tags  {', '.join(every) if every else 'none'}")
    return lines


@verb((Option("name", help="one module, with its arguments"),))
def modules(options: Options) -> None:
    """Show the modules that playbooks may use, or the arguments of one."""
    from bringup.base.errors import InputError
    from bringup.base.text import nearest
    from bringup.cli.modules import module_table

    table = module_table()
    if not options.name:
        specs = {spec.name: spec for spec in table.values()}
        width = max(len(name) for name in specs)
        for name in sorted(specs):
            print(f"{name:{width}}  {specs[name].help}")
        return
    spec = table.get(options.name)
    if spec is None:
        near = nearest(options.name, table)
        raise InputError(f"there is no module `{options.name}`", next=f"nearest: {near}" if near else None)
    others = ", ".join(alias for alias in spec.aliases if "." not in alias)
    print(f"{spec.name}  {spec.help}" + (f"  (also {others})" if others else ""))
    for name, about in spec.arguments.items():
        words = [str(about.get("type", "str")), *(["required"] if about.get("required") else [])]
        if about.get("choices"):
            words.append("one of " + ", ".join(map(str, about["choices"])))
        if about.get("default") is not None:
            words.append(f"default {about['default']}")
        print(f"  {'any name' if name == '*' else name}  {', '.join(words)}")
