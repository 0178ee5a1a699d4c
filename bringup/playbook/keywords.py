"""Which keywords plays, blocks, tasks and role entries have here, and why others of Ansible's are refused."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest

_SHARED = frozenset({
    "name", "when", "tags", "vars", "environment", "become", "become_user", "become_method", "any_errors_fatal",
    "check_mode", "diff", "ignore_errors", "ignore_unreachable", "no_log", "run_once", "delegate_to", "delegate_facts",
    "timeout", "module_defaults", "collections",
})
TASK = _SHARED | {
    "action", "local_action", "args", "loop", "loop_control", "register", "notify", "until", "retries", "delay",
    "changed_when", "failed_when", "listen",
}
BLOCK = _SHARED | {"block", "rescue", "always", "notify"}
PLAY = (_SHARED - {"when", "delegate_to", "delegate_facts"}) | {
    "hosts", "gather_facts", "gather_subset", "vars_files", "roles", "tasks", "pre_tasks", "post_tasks", "handlers",
    "serial", "max_fail_percentage", "strategy", "order", "force_handlers", "connection", "remote_user", "port",
}
IMPORT_PLAYBOOK = frozenset({"import_playbook", "ansible.builtin.import_playbook", "name", "vars", "tags", "when"})
ROLE = (_SHARED - {"name"}) | {"role", "name"}

REFUSED = {
    "async": "long work is a job: use a task with `timeout`, or a module that starts a job",
    "poll": "long work is a job: use a task with `timeout`, or a module that starts a job",
    "throttle": "use `serial` on the play, or --forks",
    "debugger": "there is no task debugger",
    "become_exe": "elevation is by sudo",
    "become_flags": "elevation is by sudo",
    "vars_prompt": "pass the value with --extra-vars, or keep it in a vault",
    "gather_timeout": "probes have their own deadlines",
    "fact_path": "facts of the site belong in the inventory",
    "validate_argspec": "arguments are checked always",
    "connection_user": "use remote_user",
    "include": "use include_tasks or import_tasks",
    "sudo": "use become",
    "sudo_user": "use become_user",
    "su": "use become",
}
"""Keywords of Ansible that are not supported, each with what to write instead."""

_TASK_ONLY_REFUSED = {
    "connection": "set ansible_connection in the inventory, or use delegate_to: localhost",
    "remote_user": "set ansible_user in the inventory",
    "port": "set ansible_port in the inventory",
}

LOOPS = {
    "with_items": "items", "with_list": "list", "with_dict": "dict", "with_sequence": "sequence",
    "with_fileglob": "fileglob", "with_flattened": "flattened", "with_first_found": "first_found",
    "with_together": "together", "with_nested": "nested", "with_subelements": "subelements",
    "with_indexed_items": "indexed_items", "with_cartesian": "nested",
}
"""`with_` keywords and the way each makes its list."""

LOOP_CONTROL = frozenset({"loop_var", "index_var", "label", "pause", "extended", "break_when"})


def unknown_keyword(key: object, known: Iterable[str], what: str, where: Origin | None) -> InputError:
    """The error for a keyword that is not known or not supported here."""
    text = str(key)
    instead = REFUSED.get(text) or (_TASK_ONLY_REFUSED.get(text) if what != "play" else None)
    if instead:
        return InputError(f"the keyword `{text}` of a {what} is not supported", where=where, next=instead)
    if text.startswith("with_"):
        near = nearest(text, LOOPS)
        return InputError(f"the loop `{text}` is not supported", where=where,
                          next=f"nearest: {near}" if near else "use loop")
    near = nearest(text, known)
    return InputError(f"the keyword `{text}` is not known in a {what}", where=where,
                      next=f"nearest: {near}" if near else None)
