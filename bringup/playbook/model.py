"""Plays, blocks, tasks and roles as read: names checked, keywords inherited, values not yet rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from bringup.base.origin import Origin


class Module(Protocol):
    """What reading a playbook needs to know of a module; `bringup.run.actions.ModuleSpec` has this shape."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def free_form(self) -> str | None: ...
    @property
    def aliases(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Loop:
    """What a task loops over. `kind` is `loop` or the lookup behind a `with_` keyword."""

    kind: str
    value: Any
    label: Any = None
    var: str = "item"
    index_var: str | None = None
    pause: Any = 0
    extended: bool = False
    break_when: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Keywords:
    """Keywords that go from plays and blocks down to tasks. None means not said; values may be templates."""

    when: tuple[Any, ...] = ()
    vars: tuple[Mapping[str, Any], ...] = ()
    include_params: tuple[Mapping[str, Any], ...] = ()
    tags: frozenset[str] = frozenset()
    environment: tuple[Any, ...] = ()
    become: Any = None
    become_user: Any = None
    any_errors_fatal: Any = None
    check_mode: Any = None
    diff: Any = None
    ignore_errors: Any = None
    ignore_unreachable: Any = None
    no_log: Any = None
    run_once: Any = None
    delegate_to: Any = None
    delegate_facts: Any = None
    timeout: Any = None
    notify: tuple[Any, ...] = ()
    module_defaults: tuple[Mapping[str, Any], ...] = ()


@dataclass(eq=False)
class Role:
    """A role in a play: its folder, variables and the roles that asked for it."""

    name: str
    path: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    entry_vars: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    parents: tuple[Role, ...] = ()
    from_include: bool = False
    dependencies: list[Role] = field(default_factory=list)
    handlers: list[Node] = field(default_factory=list)
    tasks: list[Node] = field(default_factory=list)
    origin: Origin | None = None

    def all_dependencies(self) -> list[Role]:
        """Dependencies, deepest first."""
        out: list[Role] = []
        for role in self.dependencies:
            out.extend(role.all_dependencies())
            out.append(role)
        return out


@dataclass(eq=False)
class Task:
    """One task or handler. `args` are by canonical names; `module` is None for includes."""

    name: str
    action: str
    origin: Origin
    args: Mapping[str, Any]
    keywords: Keywords
    search: tuple[Path, ...]
    module: Module | None = None
    role: Role | None = None
    loop: Loop | None = None
    register: str | None = None
    until: tuple[Any, ...] = ()
    retries: Any = None
    delay: Any = 5
    changed_when: tuple[Any, ...] | None = None
    failed_when: tuple[Any, ...] | None = None
    handler: bool = False
    listen: tuple[str, ...] = ()
    selected: bool = True
    include: Include | None = None
    index: int = 0

    @property
    def shown_name(self) -> str:
        """The name with its role before it, as Ansible shows it."""
        return f"{self.role.name} : {self.name}" if self.role else self.name


@dataclass(frozen=True)
class Include:
    """A dynamic include: `what` is tasks, role or vars. `apply` goes to the tasks that it brings."""

    what: str
    apply: Mapping[str, Any] = field(default_factory=dict)
    allow_duplicates: bool = True
    public: bool = False


@dataclass(eq=False)
class Block:
    """Nodes that belong together. Keywords are already in the tasks; rescue and always make it a boundary."""

    body: list[Node]
    origin: Origin
    name: str = ""
    rescue: list[Node] = field(default_factory=list)
    always: list[Node] = field(default_factory=list)
    has_rescue: bool = False

    @property
    def guarded(self) -> bool:
        """True when a failure inside does not simply end the host."""
        return bool(self.has_rescue or self.always)


Node = Task | Block


@dataclass(eq=False)
class Play:
    """One play. `hosts` is the pattern; `sections` are pre_tasks, roles with tasks, and post_tasks."""

    name: str
    hosts: str
    origin: Origin
    hosts_origin: Origin
    keywords: Keywords
    sections: list[list[Node]] = field(default_factory=list)
    handlers: list[Node] = field(default_factory=list)
    late_handlers: list[Node] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    vars: Mapping[str, Any] = field(default_factory=dict)
    vars_files: Sequence[Any] = ()
    gather_facts: Any = None
    gather_subset: Any = None
    serial: Any = None
    strategy: str = "free"
    max_fail_percentage: Any = None
    any_errors_fatal: Any = False
    force_handlers: Any = False
    order: str | None = None
    folder: Path = Path(".")
    connection: Mapping[str, Any] = field(default_factory=dict)
    extra_roles: list[Role] = field(default_factory=list)
    selected: bool = True

    @property
    def all_handlers(self) -> list[Node]:
        """Handlers in the order in which they run: of roles, of the play, of roles that tasks bring in."""
        return [*self.handlers, *self.late_handlers]

    def tasks(self) -> list[Task]:
        """Every task of the play in order, handlers left out."""
        return [task for section in self.sections for task in walk(section)]


@dataclass(frozen=True)
class Playbook:
    """A playbook file and everything that it imports."""

    path: Path
    plays: tuple[Play, ...]
    warnings: tuple[str, ...] = ()


def walk(nodes: Sequence[Node]) -> list[Task]:
    """The tasks of these nodes and of all blocks in them, in order."""
    out: list[Task] = []
    for node in nodes:
        if isinstance(node, Task):
            out.append(node)
        else:
            out.extend(walk(node.body))
            out.extend(walk(node.rescue))
            out.extend(walk(node.always))
    return out


def under(parent: Keywords, own: Keywords) -> Keywords:
    """Keywords of a child: lists grow, single values are the child's where it says one."""
    return replace(
        own,
        when=(*parent.when, *own.when),
        vars=(*parent.vars, *own.vars),
        include_params=(*parent.include_params, *own.include_params),
        tags=parent.tags | own.tags,
        environment=(*parent.environment, *own.environment),
        notify=(*parent.notify, *own.notify),
        module_defaults=(*parent.module_defaults, *own.module_defaults),
        **{name: getattr(parent, name) for name in _SINGLE if getattr(own, name) is None},
    )


_SINGLE = ("become", "become_user", "any_errors_fatal", "check_mode", "diff", "ignore_errors", "ignore_unreachable",
           "no_log", "run_once", "delegate_to", "delegate_facts", "timeout")
