"""What a host offers to environments: interpreters, uv, glibc, environments that are there. Python 3.6."""

import os
import platform
import re
import subprocess

from bringup.agent.modules import _cuda, python_env_build
from bringup.agent.task import Failure

_ASK = ("import sys,sysconfig;name=sys.implementation.name;"
        "print({'cpython':'CPython'}.get(name,name),sys.version.split()[0],sys.implementation.cache_tag,"
        "sysconfig.get_config_var('SOABI'),sep='|');print(sys.executable)")


def run(task):
    named = task.args.get("python")
    found = interpreters(task.args["pythons"], named, task.root)
    uv, version = find_uv(task.args.get("uv"), task.root)
    return {"changed": False, "machine": platform.machine(), "system": platform.system().lower(), "glibc": glibc(),
            "interpreters": found, "uv": uv, "uv_version": version, "free": _free(task.root),
            "driver": driver(),
            "cuda": _cuda.toolkits(_cuda.search(), task.args.get("cuda_home")) if task.args.get("cuda") else []}


def interpreters(wanted, named=None, root=None):
    """The interpreters found: for each wanted version the first on PATH that has it, else one that was brought under
    `root`. A named one is the only one.

    Raises Failure when the named one is not there or answers nothing.
    """
    if named:
        seen = ask(named)
        if seen is None:
            raise Failure("the interpreter named for environments does not run", expected=named,
                          found="no such program, or it answers nothing",
                          next="correct bringup_environment_python in the inventory")
        return [seen]
    out, asked = [], {}
    for version in wanted:
        for candidate in _candidates(version) + _brought(version, root):
            real = os.path.realpath(candidate)
            if real not in asked:
                asked[real] = ask(candidate)
            seen = asked[real]
            if seen is not None and seen["version"].split(".")[:2] == str(version).split("."):
                out.append(seen)
                break
    return out


def ask(path):
    """What an interpreter says of itself: path, version, implementation, abi; None when it says nothing."""
    environment = dict((key, value) for key, value in os.environ.items() if not key.startswith("PYTHON"))
    try:
        process = subprocess.Popen([path, "-I", "-S", "-c", _ASK], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=environment)
        out = process.communicate(timeout=20)[0].decode("utf-8", "replace").splitlines()
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    except OSError:
        return None
    if process.returncode != 0 or len(out) < 2 or out[0].count("|") != 3:
        return None
    implementation, version, tag, abi = out[0].split("|")
    return {"path": out[1] or path, "version": version, "implementation": implementation, "tag": tag, "abi": abi}


def _candidates(version):
    folders = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    folders += [part for part in ("/usr/local/bin", "/usr/bin") if part not in folders]
    out = []
    for name in ("python%s" % version, "python3"):
        for folder in folders:
            path = os.path.join(folder, name)
            if os.access(path, os.X_OK) and path not in out:
                out.append(path)
    return out


def _brought(version, root):
    """Interpreters of ours: under `pythons/` of bringup_root, the newest patch version first."""
    place = os.path.join(root or "", "pythons")
    try:
        names = os.listdir(place) if root else []
    except OSError:
        return []
    fitting = [name for name in names if name.startswith("cpython-%s." % version) and ".new-" not in name]
    fitting.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)[:3]], reverse=True)
    return [os.path.join(place, name, "bin", "python%s" % version) for name in fitting]


def glibc():
    """glibc's version as text, or None (musl)."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None
    return text.split()[-1] if text else None


def driver():
    """Version of the loaded NVIDIA kernel module, or None."""
    try:
        with open("/sys/module/nvidia/version") as file:
            return file.read().strip() or None
    except OSError:
        return None


def find_uv(named, root):
    """(path, version) of a uv on this host: the named one, ours, or one on PATH; (None, None) when there is none."""
    places = [named] if named else []
    tools = os.path.join(root, "cache", "tools")
    try:
        places += sorted(os.path.join(tools, name) for name in os.listdir(tools) if name.startswith("uv-"))
    except OSError:
        pass
    places += [os.path.join(part, "uv") for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    places += [os.path.expanduser("~/.local/bin/uv"), os.path.expanduser("~/.cargo/bin/uv")]
    for place in places:
        version = python_env_build.uv_version(place)
        if version is not None:
            return place, version
    return None, None


def _free(root):
    """Bytes free where environments will lie (the nearest folder that is there)."""
    place = root
    while place and not os.path.isdir(place):
        parent = os.path.dirname(place)
        if parent == place:
            break
        place = parent
    try:
        seen = os.statvfs(place or "/")
    except OSError:
        return None
    return seen.f_bavail * seen.f_frsize
