"""A group of accounts, by groupadd, groupmod and groupdel."""

import grp

from bringup.agent.modules import _accounts
from bringup.agent.task import Failure

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "gid": {"type": "int"},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "system": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
    "non_unique": {"type": "bool", "default": False},
}


def run(task):
    args = task.args
    name, gid = args["name"], args.get("gid")
    try:
        found = grp.getgrnam(name)
    except KeyError:
        found = None
    out = {"changed": False, "name": name, "state": args.get("state", "present")}
    if out["state"] == "absent":
        if found is not None:
            words = ["groupdel"] + (["-f"] if args.get("force") else [])
            _accounts.change(task, words + [name], out)
        return out
    out["system"] = bool(args.get("system"))
    extra = ["-o"] if args.get("non_unique") else []
    if args.get("non_unique") and gid is None:
        raise Failure("non_unique needs a gid")
    if found is None:
        words = ["groupadd"] + (["-g", str(gid)] + extra if gid is not None else [])
        _accounts.change(task, words + (["-r"] if args.get("system") else []) + [name], out)
    elif gid is not None and found.gr_gid != gid:
        _accounts.change(task, ["groupmod", "-g", str(gid)] + extra + [name], out)
    try:
        out["gid"] = grp.getgrnam(name).gr_gid
    except KeyError:
        pass
    return out
