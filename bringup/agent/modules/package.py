"""Distribution packages: by apt-get and dpkg-query, or by dnf or yum."""

import shutil

from bringup.agent.modules import _apt, _dnf
from bringup.agent.task import Failure

ARGUMENTS = {
    "name": {"type": "list", "aliases": ["pkg", "package"], "default": []},
    "state": {"type": "str", "default": "present",
              "choices": ["present", "installed", "latest", "absent", "removed"]},
    "use": {"type": "str", "default": "auto", "choices": ["auto", "apt", "dnf", "yum"]},
    "update_cache": {"type": "bool", "default": False, "aliases": ["update-cache"]},
    "cache_valid_time": {"type": "int", "default": 0},
    "install_recommends": {"type": "bool", "aliases": ["install-recommends"]},
    "default_release": {"type": "str", "aliases": ["default-release"]},
    "allow_downgrade": {"type": "bool", "default": False,
                        "aliases": ["allow-downgrade", "allow_downgrades", "allow-downgrades"]},
    "purge": {"type": "bool", "default": False},
    "autoremove": {"type": "bool", "default": False},
    "lock_timeout": {"type": "int", "default": 300},
}
_STATES = {"installed": "present", "removed": "absent"}


def run(task):
    args = dict(task.args)
    args["name"] = [str(name).strip() for name in args.get("name") or [] if str(name).strip()]
    args["state"] = _STATES.get(args.get("state"), args.get("state") or "present")
    manager = args.get("use") or "auto"
    if manager == "auto":
        manager = next((name for name in ("apt", "dnf", "yum") if shutil.which(_program(name))), None)
        if manager is None:
            raise Failure("no package manager found on this host", expected="apt-get, dnf or yum in PATH")
    elif not shutil.which(_program(manager)):
        raise Failure("%s is not on this host" % _program(manager))
    if manager == "apt":
        return _apt.run(task, args)
    return _dnf.run(task, args, manager)


def _program(manager):
    return "apt-get" if manager == "apt" else manager
