"""The playbooks that both run, and how."""

from __future__ import annotations

from judge import Case

CASES: dict[str, Case] = {
    **{name: Case(f"{name}.yml") for name in (
        "fetch", "file", "links", "copy", "copy_tree", "template", "lineinfile", "edit", "command", "stat", "wait",
        "values", "loops", "flow", "handlers", "roles", "errors", "precedence")},
    "tags": Case("tags.yml"),
    "tags one": Case("tags.yml", arguments=("--tags", "one"), runs=((),)),
    "tags two and play": Case("tags.yml", arguments=("--tags", "two,play"), runs=((),)),
    "tags never": Case("tags.yml", arguments=("--tags", "never"), runs=((),)),
    "tags debug and untagged": Case("tags.yml", arguments=("--tags", "debug,untagged"), runs=((),)),
    "tags tagged": Case("tags.yml", arguments=("--tags", "tagged"), runs=((),)),
    "tags skipped": Case("tags.yml", arguments=("--skip-tags", "both,one"), runs=((),)),
    "tags skipped always": Case("tags.yml", arguments=("--tags", "one", "--skip-tags", "always"), runs=((),)),
    "roles by tag": Case("roles.yml", arguments=("--tags", "basic"), runs=((),)),
    "extra vars": Case("precedence.yml", arguments=("--extra-vars", "v_extra=extra v_task=extra"), runs=((),)),
    "extra vars as YAML": Case("precedence.yml", arguments=("--extra-vars", '{"v_extra": "extra", "v_fact": 1}'),
                               runs=((),)),
    "several hosts": Case("several.yml", hosts=3),
    "several hosts, some": Case("several.yml", hosts=3, arguments=("--limit", "h1:h3"), runs=((),)),
    "several hosts, without one": Case("several.yml", hosts=3, arguments=("--limit", "all:!h2"), runs=((),)),
    "linear": Case("linear.yml", hosts=3, runs=((), ())),
    "fatal": Case("fatal.yml", hosts=3, runs=((), ())),
    "batches": Case("batches.yml", hosts=4, runs=((), ())),
}

REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    # a task, and what the message must hold
    "decimal mode": ("file: {path: /tmp/never, mode: 755}", ("755", '"0755"')),
    "mode that is none": ("copy: {content: x, dest: /tmp/never, mode: u=rwq}", ("u=rwq",)),
    "unknown argument": ("file: {path: /tmp/never, stat: directory}", ("stat", "state")),
    "unknown choice": ("file: {path: /tmp/never, state: folder}", ("folder", "directory")),
    "missing argument": ("copy: {content: x}", ("dest",)),
    "no such source": ("copy: {src: never.txt, dest: /tmp/never}", ("never.txt",)),
    "no such template": ("template: {src: never.j2, dest: /tmp/never}", ("never.j2",)),
    "unknown module": ("fil: {path: /tmp/never}", ("fil", "file")),
    "not a number": ("wait_for: {port: http}", ("http",)),
    "yes or no": ("lineinfile: {path: /tmp/never, line: x, create: perhaps}", ("perhaps",)),
    "given twice": ("file: {path: /tmp/never, dest: /tmp/never2}", ("path", "dest")),
    "security context, not supported": ("file: {path: /tmp/never, setype: etc_t}", ("setype",)),
    "asynchronous": ("{command: 'true', async: 10}", ("async",)),
}
