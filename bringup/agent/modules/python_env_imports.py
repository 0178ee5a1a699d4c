"""What is compiled, proven by doing: each package imported in a process of its own, torch's CUDA tried. Python 3.6.

A package that wants a library of a driver is not broken on a host where no such driver is loaded: it is told as not
tried, with the library. Where the driver is loaded the same words are a finding.
"""

import os
import re
import threading

from bringup.agent.modules import python_env_run

NVIDIA = "/proc/driver/nvidia/version"
ASCEND = "/dev/davinci_manager"
DRIVERS = (
    (r"libcuda\.so\.1|libnvidia-ml\.so\.1", "NVIDIA driver", NVIDIA),
    (r"libascend_hal\.so|libdcmi\.so", "Ascend driver", ASCEND),
)
"""Libraries that no wheel brings, whose they are, and what is there when that driver is loaded."""

SYSTEM = {
    "libnuma.so.1": "libnuma1", "libhwloc.so.15": "libhwloc15", "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1", "libmlx5.so.1": "libibverbs1", "libgomp.so.1": "libgomp1", "libGL.so.1": "libgl1",
    "libglib-2.0.so.0": "libglib2.0-0", "libsndfile.so.1": "libsndfile1", "libtbb.so.12": "libtbb12",
}
"""Libraries of the distribution that engines load: the package (Debian and Ubuntu) that has each."""

_MISSING = re.compile(r"(\S+?\.so(?:\.\d+)*): cannot open shared object file")
_SYMBOL = re.compile(r"undefined symbol: (\S+)")
_DEVICELESS = re.compile(r"Failed to infer device type|No (CUDA|NPU|HIP) (GPU|device)s? (are|is) available|"
                         r"Found no NVIDIA driver", re.I)
_SECONDS = 300


def imports(env, python, item, look, findings):
    """Import what env.yml names and every package with compiled code, some at a time.

    Appends findings. Returns (proven, untried): texts; untried says what could not be proven on this host, and why.
    """
    compiled = look["compiled"]
    verify = item.get("verify") or {}
    named = list(verify.get("imports") or [])
    left = named + sorted(name for name in compiled if name not in named and name not in (
        verify.get("not_imported") or ()))
    lock, good, waiting = threading.Lock(), [], {}

    def some():
        while True:
            with lock:
                if not left:
                    return
                name = left.pop(0)
            done = _import(env, python, name, "torch" in item["packages"])
            if done.rc == 0:
                good.append(name)
                continue
            driver = waits_for(done.stderr)
            if driver:
                waiting.setdefault(driver, []).append(name)
            else:
                findings.append(told(name, compiled.get(name), done, item["packages"].get("torch"),
                                     look["torch_of"].get(name)))

    threads = [threading.Thread(target=some) for _ in range(max(1, min(4, os.cpu_count() or 1, len(left))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    others = [name for name in good if name not in named]
    proven = ["import " + name for name in named if name in good]
    if others:
        proven.append("%d compiled packages imported" % len(others))
    untried = ["import of %s: %s" % (", ".join(sorted(names)), driver) for driver, names in sorted(waiting.items())]
    if look["foreign"]:
        untried.append("compiled for another Python, left alone: %s" % ", ".join(sorted(look["foreign"])))
    return proven, untried


def _import(env, python, name, torch):
    """The import in a process of its own; once more behind torch, whose import loads CUDA's libraries for others."""
    done = python_env_run.run([python, "-I", "-c", "import " + name], env, _SECONDS)
    if done.rc == 0 or done.timed_out or not torch or name == "torch":
        return done
    if not (_MISSING.search(done.stderr) or _SYMBOL.search(done.stderr)):
        return done
    return python_env_run.run([python, "-I", "-c", "import torch; import " + name], env, _SECONDS)


def waits_for(stderr, loaded=os.path.exists):
    """The library of a driver that is missing where no such driver is loaded, as a reason; else None."""
    for library in _MISSING.findall(stderr):
        for pattern, driver, sign in DRIVERS:
            if re.match(pattern, os.path.basename(library)) and not loaded(sign):
                return "it needs %s of the %s, and none is loaded on this host" % (os.path.basename(library), driver)
    return None


def without_device(stderr, loaded=os.path.exists):
    """Why a command could not be tried, where it ended for want of a device and no driver is loaded; else None."""
    if any(loaded(sign) for _, _, sign in DRIVERS):
        return None
    if _DEVICELESS.search(stderr):
        return "it wants a device, and no driver of one is loaded on this host"
    return waits_for(stderr, loaded)


def told(name, of, done, torch, wanted_torch):
    """The finding for an import that failed: what was expected, what was found, in words that name the cause.

    `of` is "distribution version" or None, `torch` the torch that is locked, `wanted_torch` what the distribution's
    METADATA asks of it.
    """
    found = cause(done)
    expected = "an import that ends with 0"
    symbol = _SYMBOL.search(done.stderr)
    if symbol and torch:
        expected = "compiled code for torch %s, the one that is installed" % torch
        if wanted_torch:
            expected += " (its METADATA asks for torch%s)" % wanted_torch
        found = "undefined symbol %s: it was built against another torch" % symbol.group(1)
    out = {"check": "imports", "summary": "import %s fails%s" % (name, " (%s)" % of if of else ""), "package": name,
           "expected": expected, "found": found}
    mend = _mend(done)
    if mend:
        out["mend"] = mend
    return out


def cause(done):
    """Why an import failed, in one line: the first error that names a library or a symbol, else the last one."""
    if done.timed_out:
        return "no end after %d s" % _SECONDS
    if done.rc == -4:
        return "illegal instruction: it was built for another CPU"
    if done.rc < 0:
        return "ended by signal %d" % -done.rc
    lines = [line.strip().lstrip("- ") for line in done.stderr.splitlines() if line.strip()]
    for line in lines:
        if _MISSING.search(line) or _SYMBOL.search(line):
            return line
    for line in reversed(lines):
        if re.match(r"[\w.]*(Error|Exception)\b", line):
            return line
    return lines[-1] if lines else "rc %d" % done.rc


def _mend(done):
    for library in _MISSING.findall(done.stderr):
        package = SYSTEM.get(os.path.basename(library))
        if package:
            return "apt-get install %s" % package
    if done.rc == -4:
        return "take a build for this CPU, or name the package under verify.not_imported with the reason"
    return None


_COMPILING = r"""
import json, os, shutil, sys, sysconfig
include = sysconfig.get_paths()["include"]
print(json.dumps({"header": os.path.join(include, "Python.h"), "there": os.path.exists(include + "/Python.h"),
                  "compiler": next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None),
                  "python": "%d.%d" % sys.version_info[:2]}))
"""


def at_run_time(env, python, item):
    """What of this host the engines of an environment will miss when they compile at run time: texts."""
    if not any(name in item["packages"] for name in ("triton", "flashinfer-python")):
        return []
    said = python_env_run.document(env, [python, "-I", "-c", _COMPILING], "ask for headers and a compiler")
    return lacking(item["packages"], said, item.get("cuda_home"), os.path.exists(NVIDIA))


def lacking(packages, said, cuda_home, driver):
    """What `at_run_time` tells. Triton compiles its launchers in C against Python's headers, FlashInfer calls nvcc;
    the latter is told where a driver is loaded, because it starts nowhere else."""
    out = []
    if "triton" in packages and not said["compiler"]:
        out.append("compiling at run time: triton finds no C compiler here: apt-get install gcc")
    if "triton" in packages and not said["there"]:
        out.append("compiling at run time: triton finds no %s here: apt-get install python%s-dev" % (
            said["header"], said["python"]))
    if "flashinfer-python" in packages and driver and not cuda_home:
        out.append("compiling at run time: flashinfer finds no CUDA toolkit here that fits: install one, or name it in "
                   "bringup_cuda_home")
    return out


_TORCH = r"""
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available(),
                  "devices": torch.cuda.device_count()}))
"""


def torch_works(env, python, findings):
    """What torch was built for and whether that works with the driver of this host. Appends a finding.

    Returns (proven, untried): a text, or None for the one that does not apply.
    """
    try:
        with open(NVIDIA) as file:
            driver = file.read()
    except (IOError, OSError):
        driver = None
    said = python_env_run.document(env, [python, "-I", "-c", _TORCH], "ask torch for its CUDA")
    finding = torch_finding(said, driver)
    if finding:
        findings.append(finding)
    built = "torch %s is built for %s" % (said["version"], "CUDA %s" % said["cuda"] if said["cuda"] else "no CUDA")
    if said["cuda"] and driver is None:
        return built, "torch's CUDA %s: no NVIDIA driver is loaded on this host" % said["cuda"]
    return built + (", %d devices" % said["devices"] if driver else ""), None


def torch_finding(said, driver):
    """A finding where a driver is loaded and torch's CUDA does not work with it, else None.

    `said` is version, cuda, available; `driver` the text of the loaded driver, None where none is loaded.
    """
    if driver is None or not said["cuda"] or said["available"]:
        return None
    found = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", driver)
    return {"check": "torch", "summary": "CUDA is not available to torch %s on this host" % said["version"],
            "expected": "a driver for CUDA %s" % said["cuda"],
            "found": "driver %s" % (found.group(1) if found else driver.splitlines()[0][:80])}
