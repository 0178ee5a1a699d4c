"""Proving an environment: what is in it, whose files they are, whether they are as locked. Python 3.6."""

import json
import os
import stat
import subprocess
import time

from bringup.agent.task import Completed, Failure, end_group

MARKER = "bringup-env.json"

# Runs in the environment's own interpreter with -I; prints one JSON document. argv: prefix, what the packages should be
_LOOK = r"""
import base64, csv, hashlib, json, os, re, sys
prefix, wanted = os.path.realpath(sys.argv[1]), json.loads(sys.argv[2])
site = os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
out = {"packages": {}, "findings": [], "path": sys.path, "files": 0}
def finding(check, summary, **more):
    out["findings"].append(dict(more, check=check, summary=summary))
def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()
owners, imports, tops, compiled = {}, {}, set(), {}
extension = re.compile(r"(^|/)(?!lib)[^/]+(\.cpython-[^/]*|\.abi3)?\.so$")
def look(info):
    folder = os.path.join(site, info)
    meta = {}
    with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                break
            if line[0] not in " \t":
                key, _, value = line.partition(":")
                meta.setdefault(key.lower(), value.strip())
    name, version = plain(meta.get("name", info)), meta.get("version", "")
    out["packages"][name] = version
    tops.add(info)
    with open(os.path.join(folder, "RECORD"), newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    bad, missing = [], []
    for row in rows:
        if not row:
            continue
        path = os.path.normpath(os.path.join(site, row[0]))
        inside = os.path.relpath(path, site)
        if not inside.startswith(".."):
            tops.add(inside.split(os.sep)[0])
            if not inside.startswith(info):
                owners.setdefault(inside, []).append((name, row[1] if len(row) > 1 else ""))
            if inside.endswith((".py", ".so")) and os.sep + "__pycache__" not in inside:
                imports.setdefault(inside.split(os.sep)[0], set()).add(name)
                if extension.search(inside):
                    top = inside.split(os.sep)[0].split(".")[0]
                    folder_of = os.path.join(site, top)
                    if top.isidentifier() and (not os.path.isdir(folder_of) or
                                               os.path.isfile(os.path.join(folder_of, "__init__.py"))):
                        compiled.setdefault(top, "%s %s" % (name, version))
        if len(row) < 2 or not row[1]:
            continue
        kind, _, digest = row[1].partition("=")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            missing.append(inside)
            continue
        out["files"] += 1
        found = base64.urlsafe_b64encode(hashlib.new(kind, data).digest()).rstrip(b"=").decode()
        if found != digest.rstrip("="):
            bad.append(inside)
    return name, version, bad, missing
changed = {}
overlay = set(wanted["overlay"])
for info in sorted(os.listdir(site)):
    if info.endswith(".dist-info") and info not in overlay:
        try:
            name, version, bad, missing = look(info)
        except OSError as error:
            finding("record", "%s has no readable RECORD or METADATA" % info, package=plain(info.split("-")[0]))
            continue
        if bad or missing:
            changed[name] = (bad, missing)
shared = {}
for path, who in owners.items():
    if len(set(name for name, _ in who)) > 1:
        names = tuple(sorted(set(name for name, _ in who)))
        seen = shared.setdefault(names, [0, 0, path])
        seen[0] += 1
        seen[1] += len(set(digest for _, digest in who)) > 1
for names, (count, differ, path) in sorted(shared.items()):
    finding("owners", "%d files have two owners: %s" % (count, " and ".join(names)), packages=list(names),
            expected="one owner for each import package", found="%s/ is owned by %s; %d of the files differ"
            % (path.split(os.sep)[0], " and ".join(names), differ))
clashing = set(name for names in shared for name in names)
for name, (bad, missing) in sorted(changed.items()):
    if name not in clashing:
        some = (bad + missing)[0]
        finding("record", "%s: %d files are not as installed (%s)" % (name, len(bad) + len(missing), some),
                package=name, expected="the hashes of its RECORD",
                found="%d edited, %d missing" % (len(bad), len(missing)))
for name, version in sorted(wanted["packages"].items()):
    found = out["packages"].get(name)
    if found != version:
        finding("versions", "%s is not as locked" % name, package=name, expected=version, found=found or "missing")
for name in sorted(set(out["packages"]) - set(wanted["packages"])):
    finding("versions", "%s is not in the lock" % name, package=name, expected="nothing",
            found=out["packages"][name])
known = tops | overlay | {"_virtualenv.py", "_virtualenv.pth", "__pycache__", "RECORD"}
for entry in sorted(set(os.listdir(site)) - known):
    finding("strangers", "%s lies in site-packages and belongs to no package" % entry, expected="nothing of the kind",
            found=os.path.join(site, entry))
out["compiled"] = compiled
out["imports"] = dict((top, sorted(names)) for top, names in imports.items())
print(json.dumps(out))
"""

_PATHS = "import json,site,sys;print(json.dumps([sys.prefix,sys.base_prefix,sys.path,bool(site.ENABLE_USER_SITE)]))"

# argv: folder of the model's config.json
_CONFIG = r"""
import json, sys
try:
    from transformers import AutoConfig
    config = AutoConfig.from_pretrained(sys.argv[1])
    print(json.dumps({"type": getattr(config, "model_type", None), "class": type(config).__name__}))
except Exception as error:
    print(json.dumps({"error": "%s: %s" % (type(error).__name__, error)}))
"""


def site_folder(prefix):
    """site-packages of an environment."""
    for name in sorted(os.listdir(os.path.join(prefix, "lib"))):
        place = os.path.join(prefix, "lib", name, "site-packages")
        if name.startswith("python3") and os.path.isdir(place):
            return place
    raise Failure("the environment has no site-packages", found=prefix)


def stamp(prefix):
    """[files, bytes, newest mtime] of an environment without compiled files: what an edit does not leave as it was."""
    files, size, mixed = 0, 0, 0
    for place, folders, names in os.walk(prefix):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name in (MARKER, ".lock") or name.endswith(".pyc"):
                continue
            try:
                seen = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            files += 1
            size += seen.st_size
            mixed = (mixed + (seen.st_mtime_ns ^ (seen.st_size << 7))) & 0xFFFFFFFFFFFF
    return [files, size, mixed]


def read_marker(prefix):
    """What the build wrote about an environment, or None."""
    try:
        with open(os.path.join(prefix, MARKER), encoding="utf-8") as file:
            marker = json.load(file)
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


def unsound(prefix, digest):
    """Why the environment cannot be used as it is, in a few words; None when it is sound. Cheap: no hashes."""
    if not os.path.isdir(prefix):
        return "missing"
    marker = read_marker(prefix)
    if marker is None:
        return "unfinished"
    if marker.get("digest") != digest:
        return "built for another digest"
    if os.path.realpath(marker.get("path") or "") != os.path.realpath(prefix):
        return "the folder was moved from %s" % marker.get("path")
    wanted = (marker.get("python") or {}).get("version")
    found = _version(os.path.join(prefix, "bin", "python"))
    if found is None:
        return "its interpreter is gone"
    if found != wanted:
        return "its interpreter is %s now, was %s" % (found, wanted)
    if stamp(prefix) != marker.get("stamp"):
        return "files in it were changed"
    return None


def described(prefix):
    """What others need to know of a built environment."""
    marker = read_marker(prefix) or {}
    return {"name": marker.get("name"), "digest": marker.get("digest"), "path": prefix,
            "python": marker.get("python"), "packages": marker.get("packages") or {},
            "proven": marker.get("proven"), "built_at": marker.get("built_at")}


def described_python(item):
    return {"path": item["python"], "version": item["version"]}


def again(task, item):
    """Prove a built environment again, recorded hashes included. Returns its description with `findings`."""
    from bringup.agent.modules import python_env_build, python_env_probe

    prefix = python_env_build.folder(task.root, item["digest"])
    reason = unsound(prefix, item["digest"])
    findings = []
    if reason is not None:
        findings.append({"check": "sound", "summary": "not built here" if reason == "missing" else reason,
                         "expected": "a sound environment", "found": prefix})
    out = {"changed": False, "name": item["name"], "digest": item["digest"], "path": prefix, "findings": findings}
    if reason in ("missing", "unfinished", "its interpreter is gone"):
        return out
    uv = task.args.get("uv") or python_env_probe.find_uv(None, task.root)[0]
    env = python_env_build.environment(task)
    report = prove(task, item, prefix, uv, env)
    findings[:0] = report["findings"] + commands(task, item, prefix)
    out["proven"] = report["proven"]
    return out


def prove(task, item, prefix, uv, env):
    """Look into the environment at `prefix`. Returns packages, findings and what was proven (texts)."""
    started = time.time()
    python = os.path.join(prefix, "bin", "python")
    wanted = json.dumps({"packages": item["packages"], "overlay": item.get("overlay_names") or []})
    report = _document(env, [python, "-I", "-c", _LOOK, prefix, wanted], "look at its packages")
    proven = ["%d packages as locked, %d files as recorded" % (len(report["packages"]), report["files"])]
    findings = report["findings"]
    findings += _outside(env, python, prefix)
    proven.append("nothing visible from outside")
    config = (item.get("verify") or {}).get("config")
    if config:
        said = _config(env, python, config, findings)
        proven.append(said)
    proven += _imports(env, python, item, report["compiled"], findings)
    if "torch" in item["packages"] and not any(found["check"] == "imports" for found in findings):
        proven.append(_torch(env, python, findings))
    if uv:
        findings += _consistency(env, uv, python, item)
        proven.append("requirements hold together")
    task.line("%s: proven in %.1f s, %d findings" % (item["name"], time.time() - started, len(findings)))
    return {"packages": report["packages"], "findings": findings, "proven": proven, "imports": report["imports"]}


def _imports(env, python, item, compiled, findings):
    """Import what env.yml names and every package with compiled code, each in a process of its own, some at a time."""
    import threading

    verify = item.get("verify") or {}
    named = list(verify.get("imports") or [])
    left = named + sorted(name for name in compiled if name not in named and name not in (
        verify.get("not_imported") or ()))
    lock, good = threading.Lock(), []

    def some():
        while True:
            with lock:
                if not left:
                    return
                name = left.pop(0)
            done = run([python, "-I", "-c", "import " + name], env, 300)
            if done.rc == 0:
                good.append(name)
                continue
            of = " (%s)" % compiled[name] if name in compiled else ""
            torch = item["packages"].get("torch")
            findings.append({
                "check": "imports", "summary": "import %s fails%s" % (name, of), "package": name,
                "expected": "rc 0" + (", built against torch %s" % torch if torch and of else ""),
                "found": _last(done.stderr) or ("no end after 300 s" if done.timed_out else "rc %d" % done.rc)})

    threads = [threading.Thread(target=some) for _ in range(max(1, min(4, os.cpu_count() or 1, len(left))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    others = [name for name in good if name not in named]
    return ["import " + name for name in named if name in good] + (
        ["%d compiled packages imported" % len(others)] if others else [])


DRIVER = "/proc/driver/nvidia/version"

_TORCH = r"""
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available(),
                  "devices": torch.cuda.device_count()}))
"""


def _torch(env, python, findings):
    """What torch was built for and whether that works with the driver of this host. Appends a finding."""
    try:
        with open(DRIVER) as file:
            driver = file.read()
    except (IOError, OSError):
        driver = None
    said = _document(env, [python, "-I", "-c", _TORCH], "ask torch for its CUDA")
    finding = torch_finding(said, driver)
    if finding:
        findings.append(finding)
    built = "CUDA %s" % said["cuda"] if said["cuda"] else "no CUDA"
    return "torch %s is built for %s%s" % (said["version"], built, ", %d devices" % said["devices"] if driver else "")


def torch_finding(said, driver):
    """A finding where a driver is loaded and torch's CUDA does not work with it, else None.

    `said` is version, cuda, available; `driver` the text of the loaded driver, None where none is loaded.
    """
    import re

    if driver is None or not said["cuda"] or said["available"]:
        return None
    found = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", driver)
    return {"check": "torch", "summary": "CUDA is not available to torch %s on this host" % said["version"],
            "expected": "a driver for CUDA %s" % said["cuda"],
            "found": "driver %s" % (found.group(1) if found else driver.splitlines()[0][:80])}


def commands(task, item, prefix):
    """Run the commands that must answer (`vllm --version`). Returns findings."""
    from bringup.agent.modules import python_env_build

    env = python_env_build.environment(task)
    findings = []
    for words in (item.get("verify") or {}).get("commands") or []:
        program = os.path.join(prefix, "bin", words[0])
        try:
            done = run([program] + [str(word) for word in words[1:]], env, 120)
        except Failure as error:
            findings.append({"check": "commands", "summary": "%s does not start" % words[0], "expected": program,
                             "found": error.message})
            continue
        if done.rc != 0:
            findings.append({"check": "commands", "summary": "`%s` fails" % " ".join(words), "expected": "rc 0",
                             "found": "rc %d: %s" % (done.rc, _last(done.stderr or done.stdout))})
    return findings


def _outside(env, python, prefix):
    """Nothing of another environment, of the user or of the system's site is importable, with -I and without."""
    findings = []
    real = os.path.realpath(prefix)
    for words in ([python, "-I"], [python]):
        own, base, path, user = _document(env, words + ["-c", _PATHS], "ask for sys.path")
        for entry in path:
            place = os.path.realpath(entry) if entry else ""
            standard = place.startswith(os.path.realpath(base)) and "-packages" not in place
            if place and not place.startswith(real + os.sep) and not standard:
                findings.append({"check": "outside", "summary": "%s is visible from the environment" % entry,
                                 "expected": "only %s and the standard library" % prefix, "found": entry})
        if user:
            findings.append({"check": "outside", "summary": "the user's site is visible", "expected": "disabled",
                             "found": "ENABLE_USER_SITE"})
        if os.path.realpath(own) != real:
            findings.append({"check": "outside", "summary": "the interpreter belongs to another environment",
                             "expected": prefix, "found": own})
    return findings


def _config(env, python, config, findings):
    """AutoConfig on the model's own config.json: loads, or is refused in the library's own words."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "config.json"), "w") as file:
            json.dump(config["content"], file)
        said = _document(env, [python, "-I", "-c", _CONFIG, place], "load a model configuration")
    model = config["model_type"]
    if config["expect"] == "known":
        if said.get("type") != model:
            findings.append({"check": "config", "summary": "transformers does not load a %s configuration" % model,
                             "expected": "model type %s" % model, "found": said.get("error") or said.get("type")})
        return "%s is known (%s)" % (model, said.get("class"))
    words = config.get("words") or model
    error = said.get("error") or ""
    if not error or words not in error:
        findings.append({"check": "config", "summary": "a %s configuration is not refused as it should be" % model,
                         "expected": "an error that says: %s" % words,
                         "found": error or "loaded as %s" % said.get("class")})
    return "%s is refused" % model


def _consistency(env, uv, python, item):
    """uv's own check of what the packages require, the recorded overrides taken out."""
    import re

    done = run([uv, "pip", "check", "--no-config", "--color", "never", "--python", python], env, 120)
    if done.rc == 0:
        return []
    findings = []
    allowed = set(item.get("overrides") or [])
    for line in (done.stdout + "\n" + done.stderr).splitlines():
        found = re.match(r"The package `([^`]+)` requires `([^`]+)`, but (.*)", line.strip())
        if not found:
            continue
        name = re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", found.group(2))[0]).lower()
        if name not in allowed:
            findings.append({"check": "consistency", "summary": "%s requires %s" % found.group(1, 2),
                             "expected": found.group(2), "found": found.group(3)})
    return findings


def _document(env, argv, what):
    done = run(argv, env, 300)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Failure("cannot %s" % what, rc=done.rc, found=_last(done.stderr) or "no answer", stderr=done.stderr)


def run(argv, env, timeout):
    """Run a command with exactly this environment (settings may hold secrets: never as words of a command line).

    Returns a Completed; a deadline ends the whole process group. Raises Failure when it cannot be started.
    """
    started = time.time()
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=env, start_new_session=True)
    except OSError as error:
        raise Failure("cannot run %s: %s" % (argv[0], error.strerror or error), rc=error.errno or 2)
    late = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
        end_group(process)
        out, err = process.communicate()
    return Completed(argv, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"),
                     time.time() - started, late)


def _last(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _version(python):
    """The version that an interpreter says it has, None when it does not run."""
    try:
        if not stat.S_ISREG(os.stat(python).st_mode):
            return None
        process = subprocess.Popen([python, "-I", "-S", "-c", "import sys;print('%d.%d.%d' % sys.version_info[:3])"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        out = process.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    except OSError:
        return None
    return out.decode("utf-8", "replace").strip() if process.returncode == 0 else None
