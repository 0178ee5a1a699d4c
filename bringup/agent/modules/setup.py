"""Gather facts of the host, under the names that playbooks know."""

import fnmatch

from bringup.agent.modules import _facts, _hardware, _network
from bringup.agent.task import Failure

ARGUMENTS = {
    "gather_subset": {"type": "list", "default": ["all"]},
    "filter": {"type": "list", "default": []},
    "gather_timeout": {"type": "int", "default": 10},
}
_PARTS = (
    ("system", _facts.system),
    ("distribution", _facts.distribution),
    ("date_time", _facts.date_time),
    ("env", _facts.environment),
    ("user", _facts.user),
    ("python", _facts.python),
    ("service_mgr", _facts.service_manager),
    ("pkg_mgr", _facts.package_manager),
    ("selinux", _facts.selinux),
    ("cmdline", _facts.command_line),
    ("dns", _network.dns),
    ("ssh_pub_keys", _facts.host_keys),
    ("virtual", _hardware.virtualization),
    ("processor", _hardware.processor),
    ("memory", _hardware.memory),
    ("mounts", _hardware.mounts),
    ("dmi", _hardware.firmware),
    ("network", _network.network),
)
_SETS = {
    "hardware": {"processor", "memory", "mounts", "dmi"},
    "min": {"system", "distribution", "date_time", "env", "user", "python", "service_mgr", "pkg_mgr", "selinux",
            "cmdline", "dns", "ssh_pub_keys"},
    "platform": {"system"},
    "interfaces": {"network"},
    "default_ipv4": {"network"},
    "all_ipv4_addresses": {"network"},
    "virtualization_type": {"virtual"},
}
_MINIMUM = _SETS["min"]


def run(task):
    wanted = _wanted([str(name) for name in task.args.get("gather_subset") or ["all"]])
    facts = {}
    for name, gather in _PARTS:
        if name in wanted:
            facts.update(gather(task))
    facts["gather_subset"] = list(task.args.get("gather_subset") or ["all"])
    facts["module_setup"] = True
    patterns = [str(one) for one in task.args.get("filter") or [] if one]
    out = {}
    for name, value in facts.items():
        full = name if name in ("gather_subset", "module_setup") else "ansible_" + name
        if not patterns or any(fnmatch.fnmatch(full, one) or fnmatch.fnmatch(name, one) for one in patterns):
            out[full] = value
    return {"changed": False, "ansible_facts": out}


def _wanted(names):
    """Parts that the subset names: `all`, `min`, parts and groups of parts, `!` takes away, `!min` the minimum too."""
    every = {name for name, _ in _PARTS}
    named, dropped = set(), set()
    for name in names:
        bare = name.lstrip("!")
        parts = every if bare == "all" else _SETS.get(bare, {bare})
        if not parts <= every:
            known = ", ".join(sorted(every | set(_SETS) | {"all"}))
            raise Failure("the subset %s of the facts is not known" % bare, expected=known)
        if name.startswith("!"):
            # as playbooks expect, !all leaves the minimum
            dropped |= parts - _MINIMUM if bare == "all" else parts
        elif bare != "all":
            named |= parts
    whole = "all" in names or all(name.startswith("!") for name in names)
    # what is named itself stays, whatever is taken away
    return ((every if whole else named) | _MINIMUM) - (dropped - named)
