"""What a host offers to a kernel build: compilers, CUDA and CANN toolkits, devices, CPU, memory, Python. Python 3.6."""

import glob
import json
import os
import platform
import re
import shutil
import tempfile

from bringup.agent.modules import _cuda, _memory, python_env_probe

DEFAULT_CC = "/usr/bin/g++"
_PROGRAMS = ("cmake", "ninja", "make", "git", "pkg-config", "patch", "as", "ld")
_WITHIN = r'''
import json, os, re, sys, sysconfig
import importlib.util as u
def has(name):
    try:
        return u.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
out = {"path": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3], "soabi": sysconfig.get_config_var("SOABI"),
       "include": sysconfig.get_paths()["include"], "site": [], "versions": {},
       "has": [name for name in sys.argv[1:] if ":" not in name and has(name)]}
asked = [name[5:] for name in sys.argv[1:] if name.startswith("dist:")]
for name in asked:
    import importlib.metadata
    try:
        out["versions"][name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
out["headers"] = os.path.exists(os.path.join(out["include"], "Python.h"))
out["site"] = [path for path in sys.path if path.endswith("-packages")]
spec = u.find_spec("torch")
if spec and spec.origin:
    base = os.path.dirname(spec.origin)
    def read(*names):
        try:
            with open(os.path.join(base, *names), encoding="utf-8", errors="replace") as handle:
                return handle.read()
        except OSError:
            return ""
    text = read("version.py")
    def named(name):
        found = re.search(r"(?m)^%s[^=\n]*=\s*['\"]([^'\"]+)['\"]" % name, text)
        return found.group(1) if found else None
    abi = re.search(r"GLIBCXX_USE_CXX11_ABI=(\d)", read("share", "cmake", "Torch", "TorchConfig.cmake"))
    # releases that know the new ABI alone say so in a function instead
    said = r"def compiled_with_cxx11_abi\(\)[^:]*:\s*r?\"\"\"[^\"]*\"\"\"\s*return (True)"
    abi = abi or re.search(said, read("__init__.py"))
    out["torch"] = {"version": named("__version__"), "cuda": named("cuda"), "git": named("git_version"),
                    "abi": abi.group(1).replace("True", "1") if abi else None, "path": base}
print(json.dumps(out))
'''
_LINKS = "#include <string>\nstd::string join(const char *a, int n) { return std::string(a) + std::to_string(n); }\n"


def run(task):
    """The facts that choose and name a build; `missing` lists what the recipe needs and is not here."""
    args = task.args
    path = _cuda.search()
    python = _python(args.get("python"), (args.get("tools") or []) + [
        "dist:" + name for name in args.get("packages") or []])
    toolkits = _cuda.toolkits(path, args.get("cuda_home"))
    return {
        "changed": False, "machine": platform.machine(), "glibc": python_env_probe.glibc(), "cpu": cpu(),
        "memory": _memory.available(), "free": _free(task.root), "compilers": compilers(path),
        "programs": _programs(list(_cuda.SYSTEM_PATH)), "cuda": toolkits,
        "cuda_home": os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "",
        "cann": cann(), "gpus": gpus(path), "python": python, "nccl": nccl(python),
        "missing": missing(args, path), "serving": _memory.serving(task.root), "package_manager": _manager(path),
        "agent_python": own_python(),
    }


def own_python():
    """The Python that runs the agent: proofs that need no torch run under it."""
    import sys

    return sys.executable or shutil.which("python3") or "/usr/bin/python3"


def cpu():
    """Model, flags as the kernel names them, and the cores that this account may use."""
    text = _cuda.read("/proc/cpuinfo")
    flags = re.search(r"(?m)^(?:flags|Features)\s*:\s*(.*)$", text)
    model = re.search(r"(?m)^model name\s*:\s*(.*)$", text)
    return {"model": model.group(1).strip() if model else platform.machine(),
            "flags": sorted(set(flags.group(1).split())) if flags else [], "cores": len(os.sched_getaffinity(0))}


def _free(root):
    folder = root or "/"
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _programs(path):
    """Tools as a build will see them: its PATH is the system's, whatever lies before that on the account's."""
    out = {}
    for name in _PROGRAMS:
        place = _cuda.which(name, path)
        if place:
            words = re.search(r"(\d+\.\d+(?:\.\d+)*)", _cuda.said([place, "--version"])[1])
            out[name] = {"path": place, "version": words.group(1) if words else ""}
    return out


def compilers(path):
    """C++ compilers: those on PATH in its order, then numbered ones of /usr/bin. `shared` tells whether what it links
    takes libstdc++ from the system: a wrapper that puts its own copy in makes extensions that import and crash."""
    places = []
    for folder in path:
        for name in ("g++", "c++"):
            places.append(os.path.join(folder, name))
    places += sorted(glob.glob("/usr/bin/g++-[0-9]*"), reverse=True)
    out, seen = [], set()
    for place in places:
        if not os.access(place, os.X_OK) or os.path.isdir(place):
            continue
        real = os.path.realpath(place)
        if real in seen:
            continue
        seen.add(real)
        rc, text = _cuda.said([place, "-dumpfullversion", "-dumpversion"])
        version = text.strip().splitlines()[0] if rc == 0 and text.strip() else ""
        if not re.match(r"\d+", version):
            continue
        partner = re.sub(r"(g|c)\+\+", lambda m: "gcc" if m.group(1) == "g" else "cc", os.path.basename(place))
        cc = os.path.join(os.path.dirname(place), partner)
        out.append({"cxx": place, "cc": cc if os.access(cc, os.X_OK) else "", "real": real, "version": version,
                    "kind": "clang" if "clang" in _cuda.said([place, "--version"])[1].lower() else "gcc",
                    "shared": _links_shared(place)})
        if len(out) == 8:
            break
    return out


def _links_shared(cxx):
    """Whether a small library names libstdc++ as needed; None when it cannot be compiled."""
    folder = tempfile.mkdtemp(prefix="bringup-cc-")
    try:
        source, made = os.path.join(folder, "a.cpp"), os.path.join(folder, "a.so")
        with open(source, "w") as handle:
            handle.write(_LINKS)
        rc, _ = _cuda.said([cxx, "-shared", "-fPIC", "-o", made, source], 60)
        if rc != 0:
            return None
        with open(made, "rb") as handle:
            data = handle.read()
        return b"libstdc++.so" in data or b"libc++.so" in data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cann():
    """CANN toolkits by their version file, the one that `latest` names first."""
    out = []
    for place in ["/usr/local/Ascend/ascend-toolkit/latest"] + sorted(glob.glob("/usr/local/Ascend/ascend-toolkit/*")):
        for name in ("version.cfg", "version.info"):
            found = re.search(r"\[?(\d+\.\d+[\w.]*)", _cuda.read(os.path.join(place, name)))
            real = os.path.realpath(place)
            if found and real not in [item["home"] for item in out]:
                out.append({"home": real, "version": found.group(1)})
    return out


def gpus(path):
    """Name and compute capability of each NVIDIA device."""
    smi = _cuda.which("nvidia-smi", path + ["/usr/local/nvidia/bin"])
    if smi is None:
        return []
    rc, text = _cuda.said([smi, "--query-gpu=compute_cap,name", "--format=csv,noheader"], 40)
    out = []
    for line in text.splitlines() if rc == 0 else []:
        capability, _, name = line.partition(",")
        if re.match(r"\d+\.\d+$", capability.strip()):
            out.append({"capability": capability.strip(), "name": name.strip()})
    return out


def _python(path, tools):
    if not path:
        return None
    env = dict((key, "") for key in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP") if key in os.environ)
    rc, text = _cuda.said([path, "-E", "-c", _WITHIN] + list(tools), 60, env)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if rc != 0 or not lines:
        return {"path": path, "broken": (text.strip().splitlines() or ["no such program"])[-1]}
    return dict(json.loads(lines[-1]), path=path)


def nccl(python):
    """Header folder and library of NCCL: the one of the Python's torch first, then the system's."""
    for site in (python or {}).get("site") or []:
        base = os.path.join(site, "nvidia", "nccl")
        if os.path.exists(base + "/include/nccl.h") and os.path.exists(base + "/lib/libnccl.so.2"):
            return _nccl(base + "/include", base + "/lib/libnccl.so.2")
    for lib in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"):
        if os.path.exists(lib + "/libnccl.so.2"):
            for include in ("/usr/include", "/usr/local/include"):
                if os.path.exists(include + "/nccl.h"):
                    return _nccl(include, lib + "/libnccl.so.2")
    return None


def _nccl(include, library):
    text = _cuda.read(os.path.join(include, "nccl.h"))
    parts = [re.search(r"#define NCCL_%s\s+(\d+)" % name, text) for name in ("MAJOR", "MINOR", "PATCH")]
    return {"include": include, "library": library,
            "version": ".".join(part.group(1) for part in parts if part)}


def missing(args, path):
    """What the recipe needs of the system and is not here, under pkg_config, headers and programs."""
    out = {"pkg_config": [], "headers": [], "programs": []}
    tool = _cuda.which("pkg-config", path)
    for name in args.get("pkg_config") or []:
        if tool is None or _cuda.said([tool, "--exists", name])[0] != 0:
            out["pkg_config"].append(name)
    places = ["/usr/include", "/usr/local/include"] + glob.glob("/usr/include/*-linux-gnu")
    for name in args.get("headers") or []:
        if not any(os.path.exists(os.path.join(place, name)) for place in places):
            out["headers"].append(name)
    for name in args.get("programs") or []:
        if _cuda.which(name, path) is None:
            out["programs"].append(name)
    return out


def _manager(path):
    return next((name for name, program in (("apt", "apt-get"), ("dnf", "dnf"), ("yum", "yum"))
                 if _cuda.which(program, path)), "")
