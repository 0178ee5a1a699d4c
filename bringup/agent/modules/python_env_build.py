"""Building one environment: uv from a hashed lock into a temporary name, overlay, proof, rename. Python 3.6."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time

from bringup.agent.modules import _memory, python_env_check, python_env_run
from bringup.agent.task import Failure

_PLACES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "UV_FIND_LINKS")
LOCK = "bringup-lock.txt"
_TRAMPOLINE = b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"
_LEAKS = ("PYTHON", "UV_", "PIP_", "VIRTUAL_ENV", "CONDA_", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT",
          "CUDACXX")
_INDEX = ("UV_", "PIP_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE")
_NO_WAY = ("dns error", "client error (connect", "timed out", "connection refused", "network is unreachable",
           "no route to host", "tunnel", "request failed")


def folder(root, digest):
    """Where the environment of a digest lies on this host."""
    return os.path.join(root, "envs", digest[:20])


def beside(target, kind):
    """A hidden name beside the environment: `lock`, or the start of `new-...` and `old-...`."""
    return os.path.join(os.path.dirname(target), ".%s.%s" % (os.path.basename(target), kind))


def tool(task):
    """The uv to use: the one named, or the one that was sent, kept under cache/tools. Raises Failure."""
    named = task.args.get("uv")
    if named:
        if uv_version(named) is None:
            raise Failure("uv does not run on this host", expected=named, found="no such program, or not for this "
                          "machine", next="correct bringup_uv in the inventory, or leave it out: uv is sent along")
        return named
    digest = task.args.get("uv_digest")
    if not digest:
        raise Failure("there is no uv on this host and none was sent", next="install uv, or name it in bringup_uv")
    tools = os.path.join(task.root, "cache", "tools")
    path = os.path.join(tools, "uv-%s-%s" % (task.args.get("uv_version") or "0", digest[:12]))
    if uv_version(path) is None:
        _make(tools)
        staged = "%s.%d" % (path, os.getpid())
        shutil.copyfile(task.blob(digest), staged)
        os.chmod(staged, 0o755)
        os.rename(staged, path)
    if uv_version(path) is None:
        raise Failure("the uv that was sent does not run here", found=path,
                      next="is the folder mounted noexec? name another bringup_root, or a uv of the host in bringup_uv")
    return path


def uv_version(path):
    """uv's version as text, None when the program is not there or does not run."""
    if not path or not os.access(path, os.X_OK):
        return None
    try:
        process = subprocess.Popen([path, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL)
        out = process.communicate(timeout=20)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    except OSError:
        return None
    found = re.match(r"uv (\d[\w.]*)", out)
    return found.group(1) if process.returncode == 0 and found else None


def build(task, item):
    """Build an environment unless a sound one is there. Returns what is known of it, `changed` told."""
    target = folder(task.root, item["digest"])
    started = time.time()
    if item["name"] in task.sound:
        return dict(task.sound[item["name"]], changed=False)
    _make(os.path.dirname(target))
    with _held(beside(target, "lock")):
        reason = python_env_check.unsound(target, item["digest"])
        if reason is None:
            return dict(python_env_check.described(target), changed=False, seconds=time.time() - started)
        task.line("%s: building%s" % (item["name"], "" if not os.path.isdir(target) else " again: " + reason))
        _sweep(target)
        staged = beside(target, "new-%d-%d" % (os.getpid(), int(started * 1000)))
        try:
            report = _stage(task, item, task.uv, staged, target)
            described = _finish(item, staged, target, report, started)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    task.line("%s: ready after %.1f s" % (item["name"], time.time() - started))
    return dict(described, changed=True, rebuilt=reason if reason != "missing" else None,
                seconds=time.time() - started)


def _stage(task, item, uv, staged, target):
    env = environment(task, item)
    if item.get("build") or (item.get("sources") and item.get("cuda_home")):
        # uv keeps what it built by its source alone: what other variables made of it must not be taken for it
        made = [item["build"], item["cuda_home"]] if item.get("cuda_home") else item["build"]
        mark = hashlib.sha256(json.dumps(made, sort_keys=True).encode("utf-8")).hexdigest()[:8]
        env["UV_CACHE_DIR"] += "-" + mark
    _uv(item, [uv, "venv", "--relocatable", "--no-project", "--no-config", "--no-python-downloads", "--python",
                     item["python"], "--quiet", staged], env)
    python = os.path.join(staged, "bin", "python")
    lock = os.path.join(staged, LOCK)
    shutil.copyfile(task.blob(item["lock"]), lock)
    _install(task, item, uv, python, lock, env)
    report = python_env_check.prove(task, item, staged, uv, env)
    edited = sorted(set(found["package"] for found in report["findings"] if found["check"] == "record"))
    if edited:
        # hard links: a file edited in place in another environment is edited in the cache as well
        task.line("%s: the cache holds edited files of %s; fetched again" % (item["name"], ", ".join(edited)))
        _uv(item, [uv, "cache", "clean", "--quiet"] + edited, env)
        _uv(item, [uv, "pip", "uninstall", "--no-config", "--quiet", "--python", python] + edited, env)
        _install(task, item, uv, python, lock, env)
        report = python_env_check.prove(task, item, staged, uv, env)
    if item.get("overlay"):
        _overlay(task, item["overlay"], staged)
    python_env_check.commands(task, item, staged, report)
    for reason in report["untried"]:
        task.line("%s: not tried here: %s" % (item["name"], reason))
    if report["findings"]:
        first = report["findings"][0]
        for one in report["findings"][1:]:
            task.line("%s: also: %s (found %s)" % (item["name"], one["summary"], one.get("found")))
        raise Failure(first["summary"], expected=first.get("expected"), found=first.get("found"),
                      findings=report["findings"], next="the environment in use before is untouched")
    return report


def _install(task, item, uv, python, lock, env):
    """Install the lock: from the wheels that were sent, else from the cache alone, else from the index."""
    words, env = _of_sources(task, item, env) if item.get("sources") else ((), env)
    if item.get("wheels"):
        extra = ["--no-index", "--offline", "--find-links", wheel_folder(task.root)]
        return _sync(task, item, uv, python, lock, env, extra, words)
    try:
        return _sync(task, item, uv, python, lock, env, ["--offline"], words)
    except Failure:
        _reach(item, uv, python, env)
    return _sync(task, item, uv, python, lock, env, [], words)


def _reach(item, uv, python, env):
    """Ask the index for one package, without patience. Raises Failure with `index_unreachable` when none answers."""
    if not item["packages"] or env.get("UV_OFFLINE"):
        return
    name = sorted(item["packages"])[0]
    argv = [uv, "pip", "install", "--dry-run", "--no-deps", "--no-config", "--reinstall", "--refresh", "--quiet",
            "--python", python, "%s==%s" % (name, item["packages"][name])]
    quick = dict(env, UV_HTTP_RETRIES="0", UV_HTTP_CONNECT_TIMEOUT="5", UV_HTTP_TIMEOUT="20")
    done = python_env_run.run(argv, quick, 60)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    low = done.stderr.lower()
    if done.timed_out or (done.rc != 0 and any(words in low for words in _NO_WAY)):
        raise Failure("this host reaches no package index", found=_first(said), output=said[-8:],
                      next=_advice(done.stderr), index_unreachable=True)


def wheel_folder(root):
    return os.path.join(root, "cache", "wheels")


def keep_wheel(task, name, digest):
    """A wheel that was sent, kept under cache/wheels; fetched from the controller only when it is not there."""
    path = os.path.join(wheel_folder(task.root), os.path.basename(name))
    if _sha256(path) != digest:
        _make(wheel_folder(task.root))
        staged = "%s.%d" % (path, os.getpid())
        shutil.copyfile(task.blob(digest), staged)
        os.rename(staged, path)
    return path


def _sha256(path):
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
            return digest.hexdigest()
    except OSError:
        return None


def _sync(task, item, uv, python, lock, env, extra, words):
    argv = [uv, "pip", "sync", "--python", python, "--require-hashes", "--no-config", "--link-mode", "hardlink",
            "--index-strategy", "unsafe-best-match", "--no-progress", "--color", "never"]
    if item.get("sources"):
        for name in item["sources"]:
            argv += ["--no-binary", name]
    argv += ["--no-build"] if not item.get("sources") else []
    done = _uv(item, argv + extra + [lock], env, words)
    _winners(item, uv, python, lock, env, extra)
    for line in done.stderr.splitlines():
        if re.match(r"(Resolved|Prepared|Installed) ", line):
            task.line("%s: %s" % (item["name"], line[0].lower() + line[1:]))


def _of_sources(task, item, env):
    """The words before a build from source that hold it to its share of the memory, and its variables: as many
    compilers as that feeds. env.yml's own come before."""
    free = _memory.available()
    most = _memory.share(free, bool(_memory.serving(task.root)))
    jobs = max(1, min(len(os.sched_getaffinity(0)), most // int(item.get("memory_per_job") or 2 << 30)))
    words, how = _memory.held(most)
    gib = float(1 << 30)
    task.line("%s: built from source: %s, %d at a time, %.1f GiB at most of %.1f GiB that are free, held by %s" % (
        item["name"], ", ".join(item["sources"]), jobs, most / gib, free / gib, how))
    own = dict(MAX_JOBS=str(jobs), CMAKE_BUILD_PARALLEL_LEVEL=str(jobs), CARGO_BUILD_JOBS=str(jobs))
    return words, dict(env, **dict(own, **(item.get("build") or {})))


def _winners(item, uv, python, lock, env, extra):
    """Install what must lie over its siblings' files once more, behind all: uv unpacks wheels side by side, so which
    bytes a path gets that two of them have is a race."""
    with open(lock, encoding="utf-8") as file:
        text = excerpt(file.read(), item.get("last") or [])
    if not text:
        return
    with tempfile.TemporaryDirectory() as place:
        listed = os.path.join(place, "last.txt")
        with open(listed, "w", encoding="utf-8") as file:
            file.write(text)
        _uv(item, [uv, "pip", "install", "--python", python, "--no-deps", "--reinstall", "--require-hashes",
                   "--no-config", "--link-mode", "hardlink", "--no-build", "--index-strategy", "unsafe-best-match",
                   "--no-progress", "--quiet", "--color", "never"] + extra + ["-r", listed], env)


def excerpt(lock, names):
    """The lines of a lock's text for some packages, hashes included."""
    out, taken = [], False
    for line in lock.splitlines():
        if line and line[0] not in " #":
            taken = re.split(r"[=<>!~;\s\[]", line)[0] in names
        if taken and not line.lstrip().startswith("#"):
            out.append(line + "\n")
    return "".join(out)


def _finish(item, staged, target, report, started):
    python = python_env_check.described_python(item)
    packages = report["packages"]
    marker = {"digest": item["digest"], "name": item["name"], "path": target, "python": python,
              "packages": packages, "overrides": item.get("overrides") or [], "proven": report["proven"],
              "untried": report["untried"],
              "built_at": time.time(), "seconds": time.time() - started}
    marker["stamp"] = python_env_check.stamp(staged)
    with open(os.path.join(staged, python_env_check.MARKER), "w") as file:
        json.dump(marker, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    if os.path.lexists(target):
        aside = beside(target, "old-%d" % int(started * 1000))
        os.rename(target, aside)
        os.rename(staged, target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(staged, target)
    return python_env_check.described(target)


def environment(task, item):
    """The environment of uv and of the proofs: the host's, less what could leak in, with the site's index settings and
    the CUDA toolkit that is the environment's own."""
    env = dict((key, value) for key, value in task.command_environment().items()
               if not key.startswith(_LEAKS))
    for name, value in sorted((task.args.get("index") or {}).items()):
        if not name.upper().startswith(_INDEX):
            raise Failure("the variable %s has no place among the package settings" % name,
                          expected="an index, certificate or proxy variable of uv or pip")
        if name in _PLACES and "://" not in str(value) and not os.path.exists(value):
            continue  # a folder of the controller's
        env[name] = str(value)
    env.update(PYTHONNOUSERSITE="1", UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", HF_HUB_OFFLINE="1")
    if item.get("cuda_home"):
        env.update(CUDA_HOME=item["cuda_home"], CUDA_PATH=item["cuda_home"],
                   PATH=os.pathsep.join([item["cuda_home"] + "/bin", env.get("PATH") or os.defpath]))
    cache = task.args.get("cache") or os.path.join(task.root, "cache", "uv")
    try:
        _make(cache)
        env["UV_CACHE_DIR"] = cache
    except Failure:
        env["UV_CACHE_DIR"] = os.path.join(task.root, "cache", "uv")
    return env


def _uv(item, argv, env, words=()):
    """Run uv, behind `words`; its failure is told in its own words, its first line as what was found."""
    done = python_env_run.run(list(words) + argv, env, item.get("timeout") or 3600)
    if done.rc != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        what = "uv %s" % " ".join(argv[1:3] if argv[1] == "pip" else argv[1:2])
        raise Failure("%s failed" % what, rc=done.rc, found=_first(said), output=said[-12:], next=_advice(done.stderr))
    return done


def _first(lines):
    for line in lines:
        if "error" in line or line.strip().startswith(("×", "cause")):
            return line.strip()
    return lines[0] if lines else "no output"


def _advice(text):
    low = text.lower()
    if "hash mismatch" in low or "hashes" in low:
        return "the index serves other files than the lock names: check the index, or lock again with env.lock"
    if "certificate" in low:
        return "name the site's certificates in SSL_CERT_FILE (bringup_packages in the inventory)"
    if "dns" in low or "connect" in low or "timed out" in low or "tls" in low:
        return "this host reaches no package index: name one, or a proxy, in bringup_packages of the inventory"
    if any(word in low for word in ("killed signal", "memoryerror", "cannot allocate memory", "signal: 9")):
        return "memory was exhausted: free some, or set MAX_JOBS under `build` of env.yml"
    if "no space" in low:
        return "free space under bringup_root"
    return None


def _overlay(task, overlay, staged):
    """Lay the overlay's files in: `site-packages/...` where they belong, others under the environment's own folder."""
    site = python_env_check.site_folder(staged)
    with tarfile.open(task.blob(overlay["digest"])) as archive:
        for member in archive.getmembers():
            parts = member.name.split("/")
            if not member.isreg() or member.name.startswith("/") or ".." in parts:
                raise Failure("the overlay holds something that is no plain file", found=member.name)
            where = os.path.join(site, *parts[1:]) if parts[0] == "site-packages" else os.path.join(staged, *parts)
            data = archive.extractfile(member).read()
            if data.startswith(b"#!python\n"):
                data = _TRAMPOLINE + data[len(b"#!python\n"):]
            _make(os.path.dirname(where))
            if os.path.lexists(where):
                os.unlink(where)  # a hard link into the cache: never written through
            with open(where, "wb") as file:
                file.write(data)
            os.chmod(where, 0o755 if member.mode & stat.S_IXUSR else 0o644)


def _sweep(target):
    """Remove what an interrupted build of this very digest left (its lock is ours now)."""
    place = os.path.dirname(target)
    starts = tuple(os.path.basename(beside(target, kind)) for kind in ("new-", "old-"))
    for entry in os.listdir(place):
        if entry.startswith(starts):
            shutil.rmtree(os.path.join(place, entry), ignore_errors=True)


class _held(object):
    """A lock file held while an environment is built; it ends with the process."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.file = open(self.path, "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *unused):
        self.file.close()


def _make(path):
    try:
        os.makedirs(path)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise Failure("cannot make %s: %s" % (path, error.strerror or error))
