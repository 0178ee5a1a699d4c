"""The playbooks that both run, and how."""

from __future__ import annotations

from judge import Case

CASES: dict[str, Case] = {
    **{name: Case(f"{name}.yml") for name in (
        "file", "links", "copy", "copy_tree", "template", "lineinfile", "edit", "command", "stat", "wait", "values",
        "loops", "flow", "handlers", "roles", "errors", "precedence")},
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
    "fatal": Case("fatal.yml", hosts=3, runs=((), ())),
    "batches": Case("batches.yml", hosts=4, runs=((), ())),
}
