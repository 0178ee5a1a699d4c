"""Questions that load a host: collectives, copies between memories, disk reads. Only on devices that nobody uses.

Each has a deadline of its own and gives the text of the tool that usually answers it (nccl-tests, nvbandwidth), also
where torch out of an environment does the work. Python 3.6; the scripts run under the environment's own Python.
"""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

NO_TOOL = "no all_reduce_perf here, and no Python with torch"
"""Why there is no all-reduce on a host that has neither: preflight then has nccl-tests built there."""
DAEMONS = ("nvidia-persiste", "nv-hostengine", "dcgm", "nvidia-smi", "nv-fabricmanage", "nvitop")
"""Names of programs that look at devices and load none, as /proc cuts them."""
IDLE_MIB = 1024
_PRCTL = None
try:
    import ctypes

    _PRCTL = ctypes.CDLL(None).prctl
except (ImportError, OSError, AttributeError):
    pass  # a Python built without it
_DEVICE = re.compile(r"^/dev/nvidia\d+$")

ALL_REDUCE = r'''
import os, sys, time
rank, world, port, largest = (int(word) for word in sys.argv[1:5])
head, device, budget = sys.argv[5], int(sys.argv[6]), float(sys.argv[7])
os.environ.update(MASTER_ADDR=head, MASTER_PORT=str(port))
import torch, torch.distributed as dist
torch.cuda.set_device(device)
dist.init_process_group("nccl", rank=rank, world_size=world)
def say(text):
    if rank == 0:
        print(text, flush=True)
say("# nThread 1 nGpus 1 by torch %s, nccl %s, in place only" % (
    torch.__version__, ".".join(str(part) for part in torch.cuda.nccl.version())))
for number in range(world):
    say("#  Rank %2d device %2d %s" % (number, number % torch.cuda.device_count(), torch.cuda.get_device_name(device)))
half = "   time   algbw   busbw #wrong"
say("#       size         count      type   redop    root" + half + half)
size, bad = 64 << 20, 0
while size <= largest:
    count = size // 4
    data = torch.ones(count, dtype=torch.float32, device="cuda")
    dist.all_reduce(data)
    wrong = int((data != world).sum().item())
    bad += wrong
    data.zero_()
    for _ in range(5):
        dist.all_reduce(data)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(20):
        dist.all_reduce(data)
    end.record()
    torch.cuda.synchronize()
    slowest = torch.tensor([begin.elapsed_time(end) / 20 * 1000], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    micro = float(slowest.item())
    speed = size / micro / 1000
    say("%12d %13d     float     sum      -1      N/A     N/A     N/A    N/A %8.2f %7.2f %7.2f %6d" % (
        size, count, micro, speed, speed * 2 * (world - 1) / world, wrong))
    del data
    size *= 4
    # a slow way must not eat the deadline: every rank decides alike, by the slowest one's time
    if 4 * 26 * micro / 1e6 > budget * 0.6 - 20:
        say("# stopped before %d bytes: too slow for the time given" % size)
        break
say("# Out of bounds values : %d %s" % (bad, "FAILED" if bad else "OK"))
dist.destroy_process_group()
'''

COPIES = r'''
import sys
import torch
size = 1 << 30
count = torch.cuda.device_count()
host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
def rate(source, target):
    for _ in range(2):
        target.copy_(source, non_blocking=True)
    for number in range(count):
        torch.cuda.synchronize(number)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(8):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return 8 * size / (begin.elapsed_time(end) / 1000) / 1e9
def table(name, title, rows):
    print("Running %s." % name)
    print(title + " bandwidth (GB/s)")
    print("  " + "".join("%10d" % number for number in range(count)))
    for number, row in enumerate(rows):
        print("%2d" % number + "".join("%10s" % ("N/A" if cell is None else "%.2f" % cell) for cell in row))
    print("\nSUM %s %.2f\n" % (name, sum(cell for row in rows for cell in row if cell is not None)), flush=True)
print("nvbandwidth by torch %s, CUDA %s" % (torch.__version__, torch.version.cuda))
there = [torch.empty(size, dtype=torch.uint8, device="cuda:%d" % number) for number in range(count)]
def on(number, source, target):
    with torch.cuda.device(number):
        return rate(source, target)
table("host_to_device_memcpy_ce", "memcpy CE CPU(row) -> GPU(column)", [[on(n, host, there[n]) for n in range(count)]])
table("device_to_host_memcpy_ce", "memcpy CE CPU(row) <- GPU(column)", [[on(n, there[n], host) for n in range(count)]])
def local(number):
    # read and written: the traffic is twice what is copied
    with torch.cuda.device(number):
        return rate(there[number], torch.empty_like(there[number]))
table("device_local_copy", "memcpy local GPU(column)", [[local(n) for n in range(count)]])
if count > 1:
    table("device_to_device_memcpy_read_ce", "memcpy CE GPU(row) -> GPU(column)", [
        [None if a == b else on(a, there[b], there[a]) for b in range(count)] for a in range(count)])
'''


def held_by_another(given):
    """Whether another run than the one that asks (`run`) holds this host."""
    from bringup.agent.lock import Lock

    root = str(given.get("root") or "")
    if not root or not Lock(root).is_held():
        return False
    return (Lock(root).read_record() or {}).get("run") != str(given.get("run") or "-")


def busy(given):
    """Why the devices of this host must not be loaded now; "" where they may."""
    if held_by_another(given):
        return "another run holds this host"
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
            continue
        try:
            held = [os.readlink("/proc/%s/fd/%s" % (name, fd)) for fd in os.listdir("/proc/%s/fd" % name)]
        except OSError:
            continue
        if any(_DEVICE.match(path) for path in held):
            try:
                with open("/proc/%s/comm" % name) as handle:
                    program = handle.read().strip()
            except OSError:
                continue
            if not program.startswith(DAEMONS):
                return "the devices are in use: pid %s, %s" % (name, program)
    smi = shutil.which("nvidia-smi", path=_path())
    if smi is None:
        return "no nvidia-smi says who uses the devices"
    rc, text = _output([smi, "--query-compute-apps=pid", "--format=csv,noheader"], 30)
    pids = [line.strip() for line in text.splitlines() if line.strip().isdigit()]
    if rc or pids:
        return "the devices are in use: pid %s" % ", ".join(pids) if pids else "nvidia-smi ended with %s" % rc
    rc, text = _output([smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits"], 30)
    used = [int(line) for line in text.split() if line.isdigit()]
    if rc or not used:
        return "nvidia-smi does not say what memory is in use"
    return "%d MiB of a device are in use" % max(used) if max(used) > IDLE_MIB else ""


def _path():
    from bringup.agent.modules.probe import PATHS

    return os.pathsep.join([os.environ.get("PATH", "")] + list(PATHS))


def _environment(given):
    out = dict(os.environ, PATH=_path(), LC_ALL="C")
    for key, value in dict(given.get("environment") or {}).items():
        out[str(key)] = str(value)
    out.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV")
    for name in ("NCCL_DEBUG_FILE", "PYTHONPATH", "PYTHONHOME"):
        out.pop(name, None)
    return out


def _output(argv, seconds, environment=None):
    """Status and joined output of a command that is killed with its group after `seconds`."""
    return _outputs([argv], seconds, environment)


def _outputs(commands, seconds, environment=None):
    """The same of several commands side by side: the worst status, the output of the first, errors of all."""
    until = time.time() + seconds
    files, running = [], []
    try:
        for argv in commands:
            sink = tempfile.TemporaryFile(dir=_scratch())
            files.append(sink)
            running.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                                            env=environment, start_new_session=True, cwd="/",
                                            preexec_fn=end_with_parent))
        while time.time() < until and any(process.poll() is None for process in running):
            if any(process.poll() not in (None, 0) for process in running):
                until = min(until, time.time() + 10)  # one has failed: the others would wait for it
            time.sleep(0.05)
        codes = [process.poll() for process in running]
        texts = []
        for sink in files:
            sink.seek(0)
            texts.append(sink.read(8 << 20).decode("utf-8", "replace"))
        first = texts[0]
        for number, text in enumerate(texts[1:], 1):
            # of the others the way to their partners, and why they failed
            first += "".join(line + "\n" for line in text.splitlines() if " via " in line or "nvls channels" in line)
            if codes[number]:
                first += text[-2000:]
        bad = [code for code in codes if code is not None and code != 0]
        if bad:
            return bad[0], first
        return (124, first + "\nno end within %d s\n" % seconds) if None in codes else (0, first)
    finally:
        for process in running:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except OSError:
                    pass
                process.wait()
        for sink in files:
            sink.close()


def end_with_parent():
    """In a forked child: the kernel kills this process when its parent ends, in whatever way that happens.

    So a load does not outlive the agent, though each of its processes leads a session of its own.
    """
    if _PRCTL is not None:  # without it the deadline ends the load
        _PRCTL(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


def _scratch():
    """A folder for the output of measuring tools: memory first, so that no disk is needed."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _tool(given, name, places):
    """A program named by the inventory, on the path, or where it is usually built."""
    for path in [str(given.get("tool") or "")] + [shutil.which(name, path=_path()) or ""] + [
            found for place in places for found in sorted(glob.glob(place))]:
        if path and os.path.isdir(path):
            path = os.path.join(path, name)
        if path and os.access(path, os.X_OK):
            return path
    return None


def _built(given, name):
    """Where our own builds of kernels keep a program, the newest first: `bin/NAME` under bringup_root/builds."""
    root = str(given.get("root") or "")
    places = glob.glob("%s/builds/*/bin/%s" % (root, name)) if root else []
    return sorted(places, key=os.path.getmtime, reverse=True)


def torch_python(given):
    """A Python that has torch: the one named, of an environment of ours, or the first on the path. None without."""
    root = str(given.get("root") or "")
    candidates = [str(given.get("python") or "")] + sorted(glob.glob(root + "/envs/*/bin/python") if root else [])
    candidates += [shutil.which("python3", path=_path()) or ""]
    script = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('torch') else 3)"
    for path in candidates:
        if path and os.access(path, os.X_OK) and _output([path, "-c", script], 30)[0] == 0:
            return path
    return None


def _count():
    return len([path for path in glob.glob("/dev/nvidia*") if _DEVICE.match(path)])


def _skip(reason):
    return {"rc": None, "skipped": reason, "stdout": ""}


def _free_port():
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.close()
    return port


def collective(given):
    """An all-reduce over all devices of the host, as nccl-tests prints it, with NCCL's own log between."""
    reason = busy(given)
    if reason:
        return _skip(reason)
    count = _count()
    if count < 2:
        return _skip("a collective needs two devices, here is %d" % count)
    seconds, largest = float(given.get("seconds", 200)), int(given.get("largest", 4 << 30))
    environment = _environment(given)
    tool = _tool(given, "all_reduce_perf", _built(given, "all_reduce_perf") + [
        "/opt/nccl-tests/build/all_reduce_perf", "/usr/local/bin/all_reduce_perf",
        "/usr/local/nccl-tests/build/all_reduce_perf"])
    if tool:
        argv = [tool, "-b", "64M", "-e", str(largest), "-f", "4", "-g", str(count), "-n", "20", "-w", "5", "-c", "1"]
        rc, text = _output(argv, seconds, environment)
        return {"rc": rc, "stdout": "# %s\n%s" % (" ".join(argv), text)}
    python = torch_python(given)
    if python is None:
        return _skip(NO_TOOL)
    port = str(_free_port())
    rc, text = _outputs([[python, "-c", ALL_REDUCE, str(rank), str(count), port, str(largest), "127.0.0.1", str(rank),
                          str(seconds)]
                         for rank in range(count)], seconds, environment)
    return {"rc": rc, "stdout": "# %s\n%s" % (python, text)}


def ready(given):
    """Whether this host can take part in a collective over several hosts: its devices, and the Python with torch."""
    reason = busy(given)
    if reason:
        return _skip(reason)
    count, python = _count(), torch_python(given)
    if not count or python is None:
        return _skip("no device file" if not count else "no Python with torch" + _with_mpi(given))
    return {"rc": 0, "stdout": json.dumps({"count": count, "python": python}, sort_keys=True) + "\n"}


def _with_mpi(given):
    """What a person can measure several hosts by where nccl-tests were built with MPI; "" where they were not.

    mpirun logs in from host to host: nothing of ours gives it a way, so it is not started from here.
    """
    tool = _tool(given, "all_reduce_perf", _built(given, "all_reduce_perf") + [
        "/opt/nccl-tests/build/all_reduce_perf", "/usr/local/bin/all_reduce_perf",
        "/usr/local/nccl-tests/build/all_reduce_perf"])
    mpirun = shutil.which("mpirun", path=_path())
    if tool is None or mpirun is None:
        return ""
    try:
        with open(tool, "rb") as handle:
            linked = b"libmpi" in handle.read()
    except OSError:
        return ""
    return ("; %s is built with MPI: by hand, where the hosts may log in to each other, %s -np RANKS -H HOSTS %s "
            "-b 2G -e 8G -f 2 -g 1" % (tool, mpirun, tool)) if linked else ""


def replica(given):
    """This host's part of an all-reduce over several hosts by torch: ranks from `first` on, of `world`."""
    reason = busy(given)
    if reason:
        return _skip(reason)
    first, count = int(given["first"]), int(given["count"])
    words = [str(given["world"]), str(given["port"]), str(int(given.get("largest", 4 << 30))), str(given["head"])]
    seconds = float(given.get("seconds", 200))
    rc, text = _outputs([[str(given["python"]), "-c", ALL_REDUCE, str(first + number)] + words + [
        str(number), str(seconds)] for number in range(count)], seconds, _environment(given))
    return {"rc": rc, "stdout": "# %s\n%s" % (given["python"], text)}


def copies(given):
    """Bandwidth between host and devices and between devices, as nvbandwidth prints it."""
    reason = busy(given)
    if reason:
        return _skip(reason)
    if not _count():
        return _skip("no device file")
    seconds = float(given.get("seconds", 150))
    tool = _tool({}, "nvbandwidth", ("/opt/nvbandwidth/nvbandwidth", "/usr/local/bin/nvbandwidth"))
    if tool:
        rc, text = _output([tool, "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce",
                            "device_to_device_memcpy_read_ce"], seconds, _environment(given))
        # a call of its own: releases that do not know this test refuse the whole call
        local = _output([tool, "-t", "device_local_copy"], 30, _environment(given)) if rc == 0 else (1, "")
        return {"rc": rc, "stdout": text + (local[1] if local[0] == 0 else "")}
    python = torch_python(given)
    if python is None:
        return _skip("no nvbandwidth here, and no Python with torch")
    rc, text = _output([python, "-c", COPIES], seconds, _environment(given))
    return {"rc": rc, "stdout": "# %s\n%s" % (python, text)}


def diagnosis(given):
    """`dcgmi diag -r 1 -j`, its short run."""
    reason = busy(given)
    if reason:
        return _skip(reason)
    tool = shutil.which("dcgmi", path=_path())
    if tool is None:
        return {"rc": 127, "missing": True, "stdout": ""}
    rc, text = _output([tool, "diag", "-r", "1", "-j"], float(given.get("seconds", 110)), _environment(given))
    return {"rc": rc, "stdout": text}


def disk_read(given):
    """Speed of reading the largest file of a folder past the page cache: bytes, seconds, direct."""
    import mmap

    folder, wanted = str(given.get("path") or ""), int(given.get("bytes", 2 << 30))
    names = [os.path.join(folder, name) for name in os.listdir(folder)] if folder and os.path.isdir(folder) else []
    files = [(os.path.getsize(path), path) for path in names if os.path.isfile(path)]
    if not files or max(files)[0] < 64 << 20:
        return _skip("no file of 64 MiB or more in %s" % (folder or "a model folder"))
    size, path = max(files)
    block = mmap.mmap(-1, 16 << 20)
    direct = True
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        fd, direct = os.open(path, os.O_RDONLY), False
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    read, begun = 0, time.time()
    limit = begun + float(given.get("seconds", 20))
    try:
        while read < min(wanted, size) and time.time() < limit:
            got = os.readv(fd, [block]) if hasattr(os, "readv") else len(os.read(fd, 16 << 20))
            if not got:
                break
            read += got
    finally:
        os.close(fd)
    return {"rc": 0, "stdout": json.dumps({"file": os.path.basename(path), "bytes": read, "direct": direct,
                                           "seconds": round(time.time() - begun, 4)}, sort_keys=True) + "\n"}
