"""From a task and a host to what is sent: conditions, loops, arguments, accounts. Nothing here has an effect, so that
rendering can be tried again when a value is still to come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import missing

from bringup.base.errors import BringupError, InputError, StepError
from bringup.base.yaml import YamlMap, typed_text
from bringup.playbook.arguments import complete, convert
from bringup.playbook.filters import flatten
from bringup.playbook.jinja import StillToCome
from bringup.playbook.lookups import LOOKUPS
from bringup.playbook.model import Loop, Node, Task
from bringup.playbook.reading import listed
from bringup.playbook.templating import Engine, Layer, Scope, TemplateFailure, UndefinedFailure
from bringup.run.actions import Call, HostContext, ModuleSpec
from bringup.run.controller import CONTROLLER
from bringup.run.hosts import HostState, Step
from bringup.run.outcome import raw_error


@dataclass(frozen=True)
class Settings:
    """What a run says for all tasks."""

    check: bool = False
    diff: bool = False
    verbosity: int = 0
    open_include: Callable[[Task, str], list[Node]] | None = None
    variables_file: Callable[[Path], Mapping[str, Any]] | None = None


@dataclass(eq=False)
class Prepared:
    """A task rendered for a host: its steps, each with a call or an outcome."""

    name: str
    scope: Scope
    steps: list[Step] = field(default_factory=list)
    calls: list[Call | None] = field(default_factory=list)
    loop: bool = False
    ignore_errors: bool = False
    ignore_unreachable: bool = False
    no_log: bool = False
    check: bool = False
    diff: bool = False
    delegate: str | None = None
    pause: float = 0.0
    facts: list[Mapping[str, Any]] = field(default_factory=list)
    retries: int | None = None
    delay: float = 5.0

    @property
    def failed_here(self) -> bool:
        """True when an outcome that the controller worked out is a failure."""
        return any(step.raw is not None and step.raw.get("failed") for step in self.steps)


def flag(engine: Engine, value: Any, scope: Scope, default: bool = False) -> bool:
    """A keyword that is a boolean or a template of one."""
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    return bool(convert(engine.render(value, scope), {"type": "bool"}))


def number(engine: Engine, value: Any, scope: Scope, default: float) -> float:
    """A keyword that is a number or a template of one."""
    return default if value is None else float(engine.render(value, scope))


def name_of(engine: Engine, task: Task, scope: Scope) -> str:
    """The task's name rendered; as written where that is not possible."""
    try:
        text = str(engine.render(task.name, scope))
    except (BringupError, StillToCome):
        text = str(task.name)
    return f"{task.role.name} : {text}" if task.role else text


def prepare(engine: Engine, task: Task, host: HostState, scope: Scope, settings: Settings) -> Prepared:
    """Render a task. Raises StillToCome; what is wrong becomes a failed outcome of the step it belongs to."""
    out = Prepared(name_of(engine, task, scope), scope)
    words = task.keywords
    try:
        out.ignore_errors = flag(engine, words.ignore_errors, scope)
        out.ignore_unreachable = flag(engine, words.ignore_unreachable, scope)
        out.no_log = flag(engine, words.no_log, scope)
        out.check = flag(engine, words.check_mode, scope, settings.check)
        out.diff = flag(engine, words.diff, scope, settings.diff)
        if task.loop is None:
            out.steps.append(_step(engine, task, host, scope, settings, out))
            _retries(engine, task, scope, out)
            return out
        out.loop = True
        for inner, item, label, names in _items(engine, task, task.loop, scope):
            step = _step(engine, task, host, inner, settings, out)
            step.item, step.label, step.names = item, label, names
            out.steps.append(step)
        out.pause = number(engine, task.loop.pause, scope, 0)
        _retries(engine, task, scope, out)
    except _Skipped as skipped:
        out.loop = False
        out.steps, out.calls = [Step(raw=skipped.raw, scope=scope)], [None]
    except BringupError as error:
        out.loop = False
        out.steps, out.calls = [Step(raw=raw_error(error), error=error, scope=scope)], [None]
    return out


class _Skipped(Exception):
    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        self.raw = raw


def _retries(engine: Engine, task: Task, scope: Scope, out: Prepared) -> None:
    if task.until or task.retries is not None:
        out.retries = int(number(engine, task.retries, scope, 3))
        out.delay = max(0.0, number(engine, task.delay, scope, 5))


def _items(engine: Engine, task: Task, loop: Loop, scope: Scope) -> Sequence[tuple[Scope, Any, Any, Mapping[str, Any]]]:
    try:
        items = loop_items(engine, loop, scope)
    except UndefinedFailure:
        # as in Ansible: a condition that is false without the item makes the list unneeded
        skipped = _condition(engine, task, scope)
        if skipped is not None:
            raise _Skipped(skipped) from None
        raise
    out = []
    for index, item in enumerate(items):
        names: dict[str, Any] = {loop.var: item, "ansible_loop_var": loop.var}
        if loop.index_var:
            names[str(loop.index_var)] = index
            names["ansible_index_var"] = loop.index_var
        if loop.extended:
            names["ansible_loop"] = _extended(items, index)
        inner = scope.child(Layer(names, trusted=False))
        label = item
        if loop.label is not None:
            label = engine.render(loop.label, inner)
        out.append((inner, item, label, names))
    return out


def _extended(items: Sequence[Any], index: int) -> dict[str, Any]:
    count = len(items)
    out: dict[str, Any] = {"allitems": list(items), "index": index + 1, "index0": index, "first": index == 0,
                           "last": index + 1 == count, "length": count, "revindex": count - index,
                           "revindex0": count - index - 1}
    if index + 1 < count:
        out["nextitem"] = items[index + 1]
    if index:
        out["previtem"] = items[index - 1]
    return out


def loop_items(engine: Engine, loop: Loop, scope: Scope) -> list[Any]:
    """The list that a loop goes through. Raises TemplateFailure when it is none."""
    value = engine.render(loop.value, scope)
    if loop.kind == "loop":
        if not isinstance(value, list):
            raise TemplateFailure("a loop needs a list", found=f"{type(value).__name__}: {str(value)[:80]}",
                                  next="{{ dict | dict2items }} makes a list of a mapping"
                                  if isinstance(value, dict) else None)
        return value
    terms = value if isinstance(value, list) else [value]
    if loop.kind == "items":
        return flatten(terms, levels=1, skip_nulls=False)
    if loop.kind == "together":
        import itertools

        return [list(row) for row in itertools.zip_longest(*terms)]
    if loop.kind == "nested":
        import itertools

        return [list(row) for row in itertools.product(*[listed(term) for term in terms])]
    if loop.kind == "indexed_items":
        return [[index, item] for index, item in enumerate(flatten(terms, levels=1))]
    if loop.kind == "subelements":
        from bringup.playbook.filters import subelements

        options = terms[2] if len(terms) > 2 and isinstance(terms[2], Mapping) else {}
        return [list(pair) for pair in subelements(terms[0], terms[1], bool(options.get("skip_missing")))]
    return LOOKUPS[loop.kind](scope, terms, {})


def _condition(engine: Engine, task: Task, scope: Scope) -> dict[str, Any] | None:
    """The outcome of a task that its conditions skip; None when they hold."""
    for text in task.keywords.when:
        if not engine.condition(text, scope):
            return {"changed": False, "skipped": True, "skip_reason": "Conditional result was False",
                    "false_condition": text}
    return None


def skip_of(engine: Engine, task: Task, scope: Scope) -> dict[str, Any] | None:
    """The skipped outcome that the conditions of a task give, or None. Raises TemplateFailure, StillToCome."""
    return _condition(engine, task, scope)


def _step(engine: Engine, task: Task, host: HostState, scope: Scope, settings: Settings, out: Prepared) -> Step:
    """One step: skipped, worked out here, or a call of the host."""
    try:
        skipped = _condition(engine, task, scope)
        if skipped is not None:
            out.calls.append(None)
            return Step(raw=skipped, scope=scope)
        if task.keywords.delegate_to is not None:
            name = engine.render(task.keywords.delegate_to, scope)
            out.delegate = str(name) if name not in (None, "") else None
            if out.delegate is None:
                raise TemplateFailure("delegate_to renders to nothing", where=task.origin)
        worker = CONTROLLER.get(task.action)
        if worker is not None:
            out.calls.append(None)
            raw = worker(engine, task, scope, settings)
            return Step(nodes=raw.pop("_nodes", ()), raw=raw, scope=scope)
        call = call_of(engine, task, host, scope, settings, check=out.check, diff=out.diff)
        out.calls.append(call)
        return Step(scope=scope)
    except BringupError as error:
        if len(out.calls) <= len(out.steps):
            out.calls.append(None)
        return Step(raw=raw_error(error), error=error, scope=scope)


def call_of(engine: Engine, task: Task, host: HostState, scope: Scope, settings: Settings, *, check: bool,
            diff: bool) -> Call:
    """The call that a task makes on its host. Raises BringupError for a wrong argument or a missing file."""
    module = task.module
    assert isinstance(module, ModuleSpec)
    args = arguments(engine, task, module, scope)
    if module.host_action is not None:
        context = HostContext(host.name, _View(scope), task.search,
                              lambda text, path: _template(engine, args, text, path, scope), check, diff)
        call = module.host_action(args, context)
    else:
        assert module.agent is not None
        call = Call(module.agent, args)
    words = task.keywords
    return replace(
        call,
        become=call.become or become_of(engine, task, scope),
        environment={**environment_of(engine, task, scope), **call.environment},
        timeout=call.timeout if words.timeout is None else float(engine.render(words.timeout, scope)),
        changes=call.changes and not module.reads_only,
        check=check if call.check is None else call.check,
        diff=diff if call.diff is None else call.diff,
    )


def arguments(engine: Engine, task: Task, module: ModuleSpec, scope: Scope) -> dict[str, Any]:
    """The module's arguments rendered and converted. Raises BringupError."""
    rendered = engine.render(task.args, scope)
    try:
        out = complete(_with_places(rendered, task.args), module, task.origin)
    except InputError as error:
        raise StepError(error.what, where=error.where, expected=error.expected, found=error.found,
                        next=error.next) from None
    return out


def _with_places(rendered: Any, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(raw, YamlMap) or rendered is raw:
        return rendered  # type: ignore[no-any-return]
    out = YamlMap(raw.origin)
    out.update(rendered)
    out.value_origins = raw.value_origins
    out.value_texts = raw.value_texts
    return out


_TEMPLATE_OPTIONS = {
    "variable_start_string": "variable_start_string", "variable_end_string": "variable_end_string",
    "block_start_string": "block_start_string", "block_end_string": "block_end_string",
    "comment_start_string": "comment_start_string", "comment_end_string": "comment_end_string",
    "trim_blocks": "trim_blocks", "lstrip_blocks": "lstrip_blocks",
}


def _template(engine: Engine, args: Mapping[str, Any], text: str, path: Path, scope: Scope) -> str:
    options = {option: args[name] for name, option in _TEMPLATE_OPTIONS.items() if args.get(name) is not None}
    local = {"template_path": str(path), "template_fullpath": str(path.resolve()), "template_host": "",
             "template_uid": "", "ansible_managed": "Ansible managed", "template_destpath": args.get("dest")}
    return engine.file(text, path, scope, options=options, local=local)


class _View(Mapping[str, Any]):
    """Variables of a scope, rendered through and through. One that is there but cannot be rendered is an error."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        found = self._scope.find(name)
        if found is missing:
            raise KeyError(name)
        return self._scope.engine.final(found, None, self._scope)

    def __iter__(self) -> Any:
        return iter(sorted(self._scope.names()))

    def __len__(self) -> int:
        return len(self._scope.names())


def variables_view(scope: Scope) -> Mapping[str, Any]:
    """The variables of a scope as a mapping, rendered on access: KeyError for one that is not there, TemplateFailure
    for one whose template cannot be rendered."""
    return _View(scope)


def become_of(engine: Engine, task: Task, scope: Scope) -> str | None:
    """The account that a task runs as, None for the connecting one. Variables win over keywords, as in Ansible."""
    def variable(name: str) -> Any:
        found = scope.find(name)
        return None if found is missing or isinstance(found, Undefined) else found

    if not privileged(scope):
        return None
    wanted = variable("ansible_become")
    if wanted is None:
        wanted = task.keywords.become
    if not flag(engine, wanted, scope):
        return None
    user = variable("ansible_become_user")
    if user is None and task.keywords.become_user is not None:
        user = engine.render(task.keywords.become_user, scope)
    return str(user) if user else "root"


def privileged(scope: Scope) -> bool:
    """`bringup_privileged`: false where there is no elevation (the lab)."""
    found = scope.find("bringup_privileged")
    return True if found is missing else bool(convert(found, {"type": "bool"}))


def environment_of(engine: Engine, task: Task, scope: Scope) -> dict[str, str]:
    """The variables added to commands: from the play inwards, inner ones win."""
    out: dict[str, str] = {}
    for table in task.keywords.environment:
        written = table if isinstance(table, YamlMap) else scope.value(table)
        rendered = engine.render(table, scope)
        if not isinstance(rendered, dict):
            raise TemplateFailure("`environment` must be a mapping", where=task.origin, found=str(rendered)[:80])
        for name, value in rendered.items():
            plain = isinstance(written, YamlMap) and not isinstance(written.get(name), (str, type(None)))
            # `no` and `3.10` reach the process as they were typed
            out[str(name)] = typed_text(written, name) if plain else "" if value is None else str(value)
    return out


def digest_of(task: Task, call: Call, item: Any) -> str:
    """The name of a task in the host's journal: what it does and where it was written, not its arguments."""
    text = json.dumps([str(task.origin), task.action, call.module, call.args, item], default=str, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
