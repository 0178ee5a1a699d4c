"""An account, by useradd, usermod and userdel."""

import grp
import os
import pwd

from bringup.agent.modules import _accounts, _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "name": {"type": "str", "required": True, "aliases": ["user"]},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "uid": {"type": "int"},
    "non_unique": {"type": "bool", "default": False},
    "group": {"type": "str"},
    "groups": {"type": "list"},
    "append": {"type": "bool", "default": False},
    "comment": {"type": "str"},
    "shell": {"type": "path"},
    "home": {"type": "path"},
    "create_home": {"type": "bool", "default": True, "aliases": ["createhome"]},
    "move_home": {"type": "bool", "default": False},
    "skeleton": {"type": "str"},
    "system": {"type": "bool", "default": False},
    "password": {"type": "str", "no_log": True},
    "update_password": {"type": "str", "default": "always", "choices": ["always", "on_create"]},
    "password_lock": {"type": "bool"},
    "remove": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
}


def run(task):
    args = task.args
    name = args["name"]
    found = _account(name)
    out = {"changed": False, "name": name, "state": args.get("state", "present")}
    if out["state"] == "absent":
        if found is not None:
            words = ["userdel"] + (["-f"] if args.get("force") else []) + (["-r"] if args.get("remove") else [])
            _accounts.change(task, words + [name], out)
            out.update(remove=bool(args.get("remove")), force=bool(args.get("force")))
        return out
    missing = _missing_groups(args)
    if missing and not task.check:
        raise Failure("Group %s does not exist" % missing[0], name=name)
    if missing:
        # an earlier task of the run may be going to make it
        out["warnings"] = ["no group %s yet" % ", ".join(missing)]
    if found is None:
        out["system"] = bool(args.get("system"))
        _create(task, args, out)
    else:
        _modify(task, args, found, out)
    found = _account(name)
    if found is not None:
        _home(task, args, found, out)
        out.update(uid=found.pw_uid, group=found.pw_gid, comment=found.pw_gecos, home=found.pw_dir,
                   shell=found.pw_shell)
        if args.get("groups"):
            out["groups"] = ",".join(args["groups"])
    return out


def _account(name):
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _group(name):
    """The entry of a group given by name or number, or None."""
    try:
        return grp.getgrnam(name)
    except KeyError:
        pass
    try:
        return grp.getgrgid(int(name))
    except (KeyError, ValueError):
        return None


def _missing_groups(args):
    names = ([args["group"]] if args.get("group") else []) + [name for name in args.get("groups") or [] if name]
    return [name for name in names if _group(name) is None]


def _create(task, args, out):
    name = args["name"]
    words = ["useradd"]
    if args.get("uid") is not None:
        words += ["-u", str(args["uid"])] + (["-o"] if args.get("non_unique") else [])
    if args.get("group"):
        words += ["-g", args["group"]]
    elif _group(name) is not None:
        # the group is there already: useradd would fail to make it
        words.append("-N")
    if args.get("groups"):
        words += ["-G", ",".join(args["groups"])]
    for option, key in (("-c", "comment"), ("-d", "home"), ("-s", "shell"), ("-p", "password")):
        if args.get(key) is not None:
            words += [option, _files.expand(args[key]) if key in ("home", "shell") else args[key]]
    if args.get("create_home", True):
        words.append("-m")
        if args.get("skeleton"):
            words += ["-k", args["skeleton"]]
    else:
        words.append("-M")
    if args.get("system"):
        words.append("-r")
    home = _files.expand(args.get("home"))
    if home and args.get("create_home", True) and not task.check:
        parent = os.path.dirname(home.rstrip("/"))
        if parent and not os.path.isdir(parent):
            os.makedirs(parent)
    out["create_home"] = args.get("create_home", True)
    _accounts.change(task, words + [name], out)
    if args.get("password_lock") and args.get("password") is not None:
        _accounts.change(task, ["usermod", "-L", name], out)


def _modify(task, args, found, out):
    words = []
    if args.get("uid") is not None and found.pw_uid != args["uid"]:
        words += ["-u", str(args["uid"])] + (["-o"] if args.get("non_unique") else [])
    if args.get("group"):
        entry = _group(args["group"])
        if entry is None or found.pw_gid != entry.gr_gid:
            words += ["-g", args["group"]]
    words += _group_words(args, found)
    for option, key, current in (("-c", "comment", found.pw_gecos), ("-s", "shell", found.pw_shell)):
        if args.get(key) is not None and args[key] != current:
            words += [option, args[key]]
    home = _files.expand(args.get("home"))
    if home is not None and home != found.pw_dir:
        words += ["-d", home] + (["-m"] if args.get("move_home") else [])
    words += _password_words(args)
    if args.get("append"):
        out["append"] = True
    if words:
        _accounts.change(task, ["usermod"] + words + [args["name"]], out)


def _group_words(args, found):
    if args.get("groups") is None:
        return []
    wanted = set()
    for name in args["groups"]:
        entry = _group(name) if name else None
        if name:
            wanted.add(entry.gr_name if entry is not None else name)
    current = {entry.gr_name for entry in grp.getgrall() if found.pw_name in entry.gr_mem}
    primary = _group(args["group"]) if args.get("group") else _group(str(found.pw_gid))
    if primary is not None:
        wanted.discard(primary.gr_name)
        current.discard(primary.gr_name)
    if args.get("append"):
        missing = wanted - current
        return ["-a", "-G", ",".join(sorted(missing))] if missing else []
    return ["-G", ",".join(sorted(wanted))] if wanted != current else []


def _password_words(args):
    """Flags for usermod where the hash or the lock differs from what /etc/shadow holds."""
    current = _shadow(args["name"])
    words = []
    wanted = args.get("password")
    if wanted is not None and args.get("update_password", "always") == "always" and current is not None \
            and current.lstrip("!") != wanted.lstrip("!"):
        words += ["-p", wanted]
    lock = args.get("password_lock")
    if lock is not None and current is not None and current.startswith("!") != lock:
        words += ["-L"] if lock else ["-U"]
    return words


def _shadow(name):
    """The password field of an account, None where it cannot be read. (The spwd library is gone from Python 3.13.)"""
    try:
        with open("/etc/shadow") as source:
            for line in source:
                fields = line.split(":")
                if fields[0] == name and len(fields) > 1:
                    return fields[1]
    except OSError:
        pass
    return None


def _home(task, args, found, out):
    """A missing home folder of an account that is there is made, with the skeleton and the account's ownership."""
    home = _files.expand(args.get("home")) or found.pw_dir
    if not args.get("create_home", True) or not home or home == "/nonexistent" or os.path.exists(home):
        return
    out["changed"] = True
    if task.check:
        return
    import shutil

    skeleton = args.get("skeleton") or "/etc/skel"
    try:
        if os.path.isdir(skeleton):
            shutil.copytree(skeleton, home, symlinks=True)
        else:
            os.makedirs(home)
        os.chmod(home, 0o777 & ~_login_umask())
        for folder, folders, files in os.walk(home):
            for path in [folder] + [os.path.join(folder, one) for one in folders + files]:
                os.lchown(path, found.pw_uid, found.pw_gid)
    except OSError as error:
        raise _files.failure(error, "cannot make the home folder %s" % home, home)


def _login_umask():
    """UMASK of /etc/login.defs, as useradd uses it; 022 where none is set."""
    value = 0o022
    try:
        with open("/etc/login.defs") as source:
            for line in source:
                words = line.split()
                if len(words) > 1 and words[0] in ("UMASK", "HOME_MODE"):
                    number = int(words[1], 8)
                    if words[0] == "HOME_MODE":
                        return 0o777 & ~number
                    value = number
    except (OSError, ValueError):
        pass
    return value
