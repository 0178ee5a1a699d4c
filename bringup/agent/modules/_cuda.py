"""CUDA toolkits of a host, and small programs that are asked for what they are. Python 3.6."""

import glob
import os
import re
import shutil
import subprocess

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
NAMED = "bringup_cuda_home"
"""The inventory's variable that names a toolkit of a host."""


def search():
    """PATH of the account, then the system's and the usual CUDA folder."""
    out = []
    for folder in os.environ.get("PATH", "").split(os.pathsep) + list(SYSTEM_PATH) + ["/usr/local/cuda/bin"]:
        if folder and folder not in out:
            out.append(folder)
    return out


def which(name, path):
    return shutil.which(name, path=os.pathsep.join(path))


def said(argv, seconds=20, environment=None):
    """Status and output of a small program; (None, "") when it does not run or does not end."""
    env = dict(os.environ, LC_ALL="C")
    env.update(environment or {})
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env=env)
    except OSError:
        return None, ""
    try:
        out = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, ""
    return process.returncode, out.decode("utf-8", "replace")


def read(path):
    try:
        with open(path, "rb") as handle:
            return handle.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def toolkits(path, named=None):
    """CUDA toolkits: home, version, why it was looked at, and the newest gcc that its own header accepts. `named` is
    the one of the inventory; it is listed even where it is none."""
    places = [(NAMED, named or "")] + [(name, os.environ.get(name) or "") for name in ("CUDA_HOME", "CUDA_PATH")]
    places += [(place, place) for place in ["/usr/local/cuda"] + sorted(glob.glob("/usr/local/cuda-*"), reverse=True)]
    nvcc = which("nvcc", path)
    if nvcc:
        places.append(("nvcc on PATH", os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))))
    out, seen = [], {}
    for why, home in places:
        if not home:
            continue
        real = os.path.realpath(home)
        if real in seen:
            seen[real]["why"].append(why)
            continue
        compiler = os.path.join(real, "bin", "nvcc")
        if not os.access(compiler, os.X_OK):
            if why in (NAMED, "CUDA_HOME", "CUDA_PATH"):
                out.append({"home": home, "version": "", "why": [why], "gcc_max": None, "headers": False})
            continue
        found = re.search(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)", said([compiler, "--version"])[1])
        header = read(os.path.join(real, "include", "crt", "host_config.h"))
        newest = re.search(r"__GNUC__ > (\d+)", header)
        seen[real] = {"home": real, "version": found.group(2) if found else "", "why": [why],
                      "gcc_max": int(newest.group(1)) if newest else None,
                      "headers": os.path.exists(os.path.join(real, "include", "cuda_runtime.h"))}
        out.append(seen[real])
    return out
