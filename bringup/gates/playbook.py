"""The gates as a playbook: a play, which is a stage on screen, for each line of the team's file."""

from __future__ import annotations

from collections.abc import Sequence

HEAD = """\
# The gates of gates/default.yml, in order. `invoke gate` runs these plays; for other lines it makes them in this form.
"""
_LINE = """\
- name: {name}
  hosts: all
  gather_facts: false
  max_fail_percentage: 0
  tasks:
    - name: Hold what runs against this gate
      gate_line:
        line: {name}
        definition: "{{{{ gate_file | default('gates/default.yml') }}}}"
        cycle: "{{{{ gate_cycle | default(1) }}}}"
        again: "{{{{ gate_again | default('') == '{name}' }}}}"

"""
_END = """\
- name: end
  hosts: all
  gather_facts: false
  max_fail_percentage: 0
  tasks:
    - name: Say what the gates came to
      gate_end:
        definition: "{{ gate_file | default('gates/default.yml') }}"
        cycle: "{{ gate_cycle | default(1) }}"
        last: "{{ gate_last | default(true) }}"
        approve: "{{ gate_approve | default(false) }}"
"""
_COMPARE = """\
- name: compare
  hosts: all
  gather_facts: false
  max_fail_percentage: 0
  tasks:
    - name: Ask both sides the same tasks
      gate_compare:
        url: "{{ gate_url }}"
        model: "{{ gate_model | default(omit) }}"
        slice: "{{ gate_slice | default(omit) }}"
        definition: "{{ gate_file | default('gates/default.yml') }}"
"""


def lines(names: Sequence[str]) -> str:
    """The playbook of these lines; `playbooks/gate.yml` is that of the file that is shipped."""
    return HEAD + "".join(_LINE.format(name=name) for name in names) + _END


def comparison() -> str:
    """The playbook that asks another endpoint too."""
    return _COMPARE
