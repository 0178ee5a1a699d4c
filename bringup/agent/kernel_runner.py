"""The job that builds a kernel on a host: unpack, commands, yields, proof by computing, then the name. Python 3.6.

Sent to the host as a file and run there on its own (`python runner.py FOLDER`): it imports nothing of ours, so that
it outlives session and controller. FOLDER/spec.json says what to do:
    mode        build (from FOLDER/source.tar), receive (FOLDER/out came from another host), verify (`out` names it)
    name, digest, target, out, commands [[name, text]], environment, path [folders], jobs, yields [globs],
    links [sonames], proof {"argv": [...], "seconds": N}, facts {...}, memory (bytes that a build may take)
It leaves FOLDER/result.json: {"ok", "step", "rc", "jobs", "proof", "seconds", "held", ...}.
"""

import fnmatch
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

MARKER = "bringup-build.json"
COMPILED = "compiled.json"
"""In the staging folder of a build whose commands are done: its files; a proof that failed is tried without them."""
MEMORY = ("Killed signal terminated program", "fatal error: Killed", "virtual memory exhausted",
          "out of memory allocating", "Cannot allocate memory", "std::bad_alloc", "MemoryError")
TAIL = 400
LOOK = 0.25
"""Seconds between two looks at what a build takes where no control group holds it."""
KEPT = ("LANG", "HOME", "USER", "LOGNAME", "TERM", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES")
KEPT_STARTS = ("NCCL_", "NVSHMEM_", "TORCH_", "HCCL_")
"""What of the account's environment holds for builds and proofs too: a site turns features of a library off there."""


class Stop(Exception):
    """A step failed; `fields` go into result.json."""

    def __init__(self, step, **fields):
        super(Stop, self).__init__(step)
        self.fields = dict(fields, step=step)


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write(path, value):
    with open(path + ".new", "w") as handle:
        json.dump(value, handle, sort_keys=True, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    os.rename(path + ".new", path)


def files_of(folder):
    """Every plain file of a folder by its path inside, the marker left out."""
    out = {}
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(base, name)
            inside = os.path.relpath(path, folder)
            if inside != MARKER and not name.endswith(".pyc"):
                out[inside] = path
    return out


def digest_of(path):
    if os.path.islink(path):
        return "link " + os.readlink(path)
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def manifest(folder):
    """{path inside: [size, SHA-256]} of a build."""
    return dict((name, [os.lstat(path).st_size, digest_of(path)]) for name, path in files_of(folder).items())


def group_bound():
    """Bytes that this process's control group may take at most; None where nothing bounds it."""
    try:
        with open("/proc/self/cgroup") as handle:
            rows = [line.rstrip("\n").split(":", 2) for line in handle]
    except OSError:
        return None
    found = []
    for _, names, path in rows:
        if names and "memory" not in names.split(","):
            continue
        base, name = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if names else ("/sys/fs/cgroup", "memory.max")
        try:
            with open("%s%s/%s" % (base, path, name)) as handle:
                text = handle.read().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            found.append(int(text))
    return min(found) if found else None


def of_session():
    """(pid, bytes of private memory) of the other processes of this session: what the commands started."""
    own, session, page = os.getpid(), os.getsid(0), os.sysconf("SC_PAGE_SIZE")
    out = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            if os.getsid(int(name)) == session:
                with open("/proc/%s/statm" % name) as handle:
                    words = handle.read().split()
                out.append((int(name), max(0, int(words[1]) - int(words[2])) * page))
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile
    return out


class Bound(object):
    """Holds a command to `most` bytes: by this job's control group where it has such a bound, else by looking at what
    its processes take together, with a limit for each of them between two looks."""

    def __init__(self, most):
        found = group_bound() if most else None
        self.most = most
        self.by_kernel = bool(found and found <= most * 1.01)
        self.over = False
        self.done = threading.Event()

    def __str__(self):
        if not self.most:
            return "no bound"
        return "%.1f GiB at most, held by %s" % (self.most / float(1 << 30), "the control group of this job"
                                                 if self.by_kernel else "looking, no control group does it here")

    def words(self):
        """Before the command: the first to go when the host is short; a limit where no control group has one."""
        mark = "echo 800 2>/dev/null >/proc/self/oom_score_adj; "
        limit = "" if self.by_kernel or not self.most else "ulimit -d %d; " % (self.most >> 10)
        return ["/bin/bash", "-c", mark + limit + 'exec "$@"', "bash"]

    def watch(self):
        """Look until `done`. A job is a session of its own: in a session of somebody else's nothing is ended."""
        while os.getsid(0) == os.getpid() and self.most and not self.by_kernel and not self.done.wait(LOOK):
            taken = of_session()
            if sum(size for _, size in taken) <= self.most:
                continue
            self.over = True
            for pid, _ in taken:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # it ended meanwhile


class Work(object):
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "spec.json")) as handle:
            self.spec = json.load(handle)
        self.jobs = int(self.spec.get("jobs") or 1)
        self.asked_jobs = self.jobs
        self.out = self.spec.get("out") or os.path.join(folder, "out")
        self.work = os.path.join(folder, "work")
        self.began = time.time()
        self.bound = Bound(0)

    def places(self):
        return {"out": self.out, "work": self.work, "source": os.path.join(self.folder, "source"),
                "files": os.path.join(self.folder, "files"), "jobs": str(self.jobs)}

    def filled(self, text):
        for name, value in self.places().items():
            text = text.replace("{%s}" % name, value)
        return text

    def environment(self):
        env = dict((name, value) for name, value in os.environ.items()
                   if name in KEPT or name.startswith(KEPT_STARTS))
        bins = os.path.join(self.work, "bin")
        env.update(LC_ALL="C.UTF-8", TMPDIR=os.path.join(self.work, "tmp"), PYTHONNOUSERSITE="1",
                   PYTHONDONTWRITEBYTECODE="1", PATH=os.pathsep.join([bins] + list(self.spec.get("path") or [])),
                   OUT=self.out, WORK=self.work, JOBS=str(self.jobs))
        for name, value in (self.spec.get("environment") or {}).items():
            env[name] = self.filled(value)
        return env

    def prepare(self):
        for name in ("tmp", "bin"):
            os.makedirs(os.path.join(self.work, name), exist_ok=True)
        for name, path in (self.spec.get("programs") or {}).items():
            link = os.path.join(self.work, "bin", name)
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink(path, link)

    def unpack(self):
        say("== unpack")
        source = self.places()["source"]
        shutil.rmtree(source, ignore_errors=True)
        os.makedirs(source)
        with tarfile.open(os.path.join(self.folder, "source.tar")) as archive:
            for member in archive.getmembers():
                parts = member.name.split("/")
                if member.name.startswith("/") or ".." in parts or not (member.isreg() or member.issym()):
                    raise Stop("unpack", message="the source holds something that is no plain file: " + member.name)
            archive.extractall(source)
        os.makedirs(self.out, exist_ok=True)

    def commands(self):
        for name, text in self.spec.get("commands") or []:
            while True:
                self.bound = Bound(int(self.spec.get("memory") or 0))
                rc, tail = self.command(name, self.filled(text))
                if rc == 0:
                    break
                if self.bound.over:
                    tail.append("the build took more than the %.1f GiB that it may take here, and was stopped" % (
                        self.bound.most / float(1 << 30)))
                    say(tail[-1])
                short = self.bound.over or rc in (137, -9) or any(word in line for line in tail for word in MEMORY)
                if short and self.jobs > 1:
                    self.jobs = max(1, self.jobs // 2)
                    say("== %s: memory was exhausted; once more with %d at a time" % (name, self.jobs))
                    if self.jobs * 2 < self.asked_jobs:
                        raise Stop(name, rc=rc, tail=tail, memory=True)
                    continue
                raise Stop(name, rc=rc, tail=tail, memory=short)

    def command(self, name, text):
        """Run one command; its status and the last lines."""
        say("== %s (%d at a time)" % (name, self.jobs))
        say("memory: %s" % self.bound)
        watch = threading.Thread(target=self.bound.watch)
        watch.start()
        try:
            return self.follow(self.bound.words() + ["/bin/bash", "-e", "-o", "pipefail", "-c", text],
                               self.places()["source"], None)
        finally:
            self.bound.done.set()
            watch.join()

    def follow(self, argv, cwd, seconds):
        process = subprocess.Popen(argv, cwd=cwd, env=self.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if seconds:
            signal.signal(signal.SIGALRM, lambda *unused: process.kill())
            signal.alarm(int(seconds))
        tail = []
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            say(line)
            tail.append(line[:2000])
            del tail[:-TAIL]
        rc = process.wait()
        signal.alarm(0)
        return rc, tail

    def yields(self):
        there = sorted(files_of(self.out))
        for pattern in self.spec.get("yields") or []:
            if not any(fnmatch.fnmatch(name, pattern) for name in there):
                raise Stop("yields", message="the build ended with 0 and did not make %s" % pattern, tail=there[-20:])

    def links(self):
        """What a library must link to, as its own bytes name it: an import does not tell, a computation crashes."""
        for pattern, soname in self.spec.get("links") or []:
            for name, path in files_of(self.out).items():
                if fnmatch.fnmatch(name, pattern):
                    with open(path, "rb") as handle:
                        if soname.encode() not in handle.read():
                            raise Stop("links", message="%s holds its own copy of %s" % (
                                name, soname.partition(".")[0]), library=name, soname=soname)

    def prove(self):
        """Run the proof; what its last line says. An import is no proof, so the proof computes."""
        proof = self.spec.get("proof")
        say("== proof")
        argv = [self.filled(word) for word in proof["argv"]]
        rc, tail = self.follow(argv, self.work, float(proof.get("seconds") or 600))
        told = {}
        for line in reversed(tail):
            if line.startswith("{"):
                try:
                    told = json.loads(line)
                except ValueError:
                    told = {}
                break
        if rc != 0 or not told.get("proof"):
            raise Stop("proof", rc=rc, tail=tail, message=told.get("message"))
        return told

    def same(self):
        """A received or found build must be what its marker says, file by file."""
        with open(os.path.join(self.out, MARKER)) as handle:
            marker = json.load(handle)
        now = manifest(self.out)
        wrong = sorted(name for name in set(marker["files"]) | set(now) if marker["files"].get(name) != now.get(name))
        if wrong:
            raise Stop("files", message="%d files are not as they were built: %s" % (len(wrong), ", ".join(wrong[:3])))
        return marker

    def finish(self, told, marker):
        target = self.spec["target"]
        marker = dict(marker, proof=told, path=target, proven_at=time.time())
        write(os.path.join(self.out, MARKER), marker)
        for base, folders, names in os.walk(self.out):
            for name in folders + names:
                path = os.path.join(base, name)
                if not os.path.islink(path):
                    os.chmod(path, (os.stat(path).st_mode & 0o7777) | 0o044 | (0o011 if os.path.isdir(path) else 0))
        os.chmod(self.out, 0o755)
        aside = os.path.join(os.path.dirname(target), ".%s.old" % os.path.basename(target))
        shutil.rmtree(aside, ignore_errors=True)
        if os.path.lexists(target):
            os.rename(target, aside)
        os.rename(self.out, target)
        shutil.rmtree(aside, ignore_errors=True)

    def build(self):
        """Make it; the marker of what was made."""
        self.unpack()
        self.commands()
        self.yields()
        marker = {"name": self.spec["name"], "digest": self.spec["digest"], "facts": self.spec.get("facts"),
                  "jobs": self.jobs, "held": str(self.bound), "files": manifest(self.out),
                  "seconds": time.time() - self.began, "built_at": time.time(), "built_on": os.uname()[1]}
        write(os.path.join(self.folder, COMPILED), marker)
        return marker

    def compiled(self):
        """The marker of an earlier try that was compiled and not proven, where its files are as they were."""
        try:
            with open(os.path.join(self.folder, COMPILED)) as handle:
                marker = json.load(handle)
        except (OSError, ValueError):
            return None
        if marker.get("digest") != self.spec["digest"] or marker.get("files") != manifest(self.out):
            return None
        say("== compiled already, proven now")
        return marker

    def go(self):
        self.prepare()
        mode = self.spec.get("mode")
        if mode == "build":
            marker = self.compiled() or self.build()
        else:
            marker = self.same()
        self.links()
        told = self.prove()
        if mode != "verify":
            self.finish(told, marker)
        return {"ok": True, "proof": told, "jobs": self.jobs, "seconds": time.time() - self.began}


def main(folder):
    os.umask(0o022)
    work = Work(folder)
    result = os.path.join(folder, "result.json")
    try:
        told = work.go()
    except Stop as stop:
        told = dict(stop.fields, ok=False)
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        told = {"ok": False, "step": "runner", "message": "%s: %s" % (type(error).__name__, error)}
    told.setdefault("jobs", work.jobs)
    told.setdefault("seconds", time.time() - work.began)
    write(result, told)
    say("== %s" % ("proven: " + told["proof"]["proof"] if told["ok"] else "failed in " + told["step"]))
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
