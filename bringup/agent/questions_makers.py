"""Collectives on Ascend (hccl_test of CANN) and AMD (rccl-tests). Only on devices that nobody uses. Python 3.6."""

import glob
import os
import re

from bringup.agent import questions_load

_SETTINGS = ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/cann/set_env.sh")
_HCCL = ("/usr/local/Ascend/ascend-toolkit/latest/tools/hccl_test/bin/all_reduce_test",
         "/usr/local/Ascend/cann*/tools/hccl_test/bin/all_reduce_test")
_RCCL = ("/opt/rccl-tests/build/all_reduce_perf", "/usr/local/rccl-tests/build/all_reduce_perf",
         "/opt/rocm*/bin/all_reduce_perf")
_MPI = ("/usr/local/mpich*/bin/mpirun", "/usr/local/openmpi*/bin/mpirun", "/usr/lib64/openmpi/bin/mpirun")


def used(given, pattern):
    """Why devices whose files fit a pattern must not be loaded now; "" where they may."""
    if questions_load.held_by_another(given):
        return "another run holds this host"
    for name in sorted(os.listdir("/proc")):
        if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
            continue
        try:
            held = [os.readlink("/proc/%s/fd/%s" % (name, fd)) for fd in os.listdir("/proc/%s/fd" % name)]
            with open("/proc/%s/comm" % name) as handle:
                program = handle.read().strip()
        except OSError:
            continue
        # the tools of the other probes look at devices and load none
        if any(re.match(pattern, path) for path in held) and not program.startswith(("npu-smi", "rocm-smi", "amd-smi")):
            return "the devices are in use: pid %s, %s" % (name, program)
    return ""


def hccl(given):
    """An all-reduce over all chips of the host, as hccl_test prints it."""
    reason = used(given, r"^/dev/davinci\d+$")
    if reason:
        return questions_load._skip(reason)
    count = len([path for path in glob.glob("/dev/davinci*") if re.match(r"^/dev/davinci\d+$", path)])
    if count < 2:
        return questions_load._skip("a collective needs two chips, here is %d" % count)
    tool = questions_load._tool({}, "all_reduce_test", _HCCL)
    if tool is None:
        return questions_load._skip("no all_reduce_test here: it is built in CANN's tools/hccl_test")
    mpirun = questions_load._tool({}, "mpirun", _MPI)
    if mpirun is None:
        return questions_load._skip("no mpirun starts hccl_test here")
    argv = [mpirun, "-n", str(count), tool, "-b", "8K", "-e", "1G", "-f", "2", "-d", "fp32", "-o", "sum",
            "-p", str(count)]
    settings = next((path for path in _SETTINGS if os.path.isfile(path)), None)
    if settings:
        # the tool finds CANN's libraries by the variables that this file sets
        argv = ["sh", "-c", '. "$0" >/dev/null 2>&1; exec "$@"', settings] + argv
    rc, text = questions_load._output(argv, float(given.get("seconds", 200)), questions_load._environment(given))
    return {"rc": rc, "stdout": "# %d chips\n%s" % (count, text)}


def rccl(given):
    """An all-reduce over all GPUs of the host, as rccl-tests prints it (the form of nccl-tests)."""
    reason = used(given, r"^/dev/kfd$")
    if reason:
        return questions_load._skip(reason)
    count = 0
    for path in glob.glob("/sys/class/kfd/kfd/topology/nodes/*/gpu_id"):
        try:
            with open(path) as handle:
                count += handle.read().strip() not in ("", "0")
        except OSError:
            continue
    if count < 2:
        return questions_load._skip("a collective needs two GPUs, here is %d" % count)
    tool = questions_load._tool(given, "all_reduce_perf", _RCCL)
    if tool is None:
        return questions_load._skip("no all_reduce_perf of rccl-tests here")
    argv = [tool, "-b", "64M", "-e", str(int(given.get("largest", 4 << 30))), "-f", "4", "-g", str(count), "-n", "20",
            "-w", "5", "-c", "1"]
    rc, text = questions_load._output(argv, float(given.get("seconds", 200)), questions_load._environment(given))
    return {"rc": rc, "stdout": "# %s\n%s" % (" ".join(argv), text)}
