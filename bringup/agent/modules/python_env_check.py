"""Proving an environment: what is in it, whose files they are, whether they are as locked. Python 3.6."""

import json
import os
import re
import stat
import subprocess
import time

from bringup.agent.modules import python_env_imports
from bringup.agent.modules.python_env_look import LOOK
from bringup.agent.modules.python_env_run import document, last_line, run
from bringup.agent.task import Failure

MARKER = "bringup-env.json"

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
    places = [prefix]
    while places:
        try:
            entries = list(os.scandir(places.pop()))
        except OSError:
            continue
        for entry in entries:
            name = entry.name
            try:
                if entry.is_dir():
                    if name != "__pycache__" and not entry.is_symlink():
                        places.append(entry.path)
                    continue
                if name in (MARKER, ".lock") or name.endswith(".pyc"):
                    continue
                seen = entry.stat(follow_symlinks=False)
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
            "proven": marker.get("proven"), "untried": marker.get("untried") or [], "built_at": marker.get("built_at")}


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
    env = python_env_build.environment(task, item)
    report = prove(task, item, prefix, uv, env)
    commands(task, item, prefix, report)
    findings[:0] = report["findings"]
    out.update(proven=report["proven"], untried=report["untried"])
    return out


def prove(task, item, prefix, uv, env):
    """Look into the environment at `prefix`. Returns packages, findings, what was proven and what could not be tried
    on this host, and why (texts)."""
    started = time.time()
    env = proof_environment(env, task.root)
    python = os.path.join(prefix, "bin", "python")
    verify = item.get("verify") or {}
    wanted = json.dumps({"packages": item["packages"], "overlay": item.get("overlay_names") or [],
                         "shared": verify.get("shared") or [], "last": item.get("last") or []})
    report = document(env, [python, "-I", "-c", LOOK, prefix, wanted], "look at its packages")
    proven = ["%d packages as locked, %d files as recorded" % (len(report["packages"]), report["files"])]
    findings = report["findings"]
    findings += _outside(env, python, prefix)
    proven.append("nothing visible from outside")
    if verify.get("config"):
        proven.append(_config(env, python, verify["config"], findings))
    imported, untried = python_env_imports.imports(env, python, item, report, findings)
    proven += imported
    if "torch" in item["packages"] and not any(found.get("package") == "torch" for found in findings):
        works, not_tried = python_env_imports.torch_works(env, python, findings)
        proven.append(works)
        untried += [not_tried] if not_tried else []
    untried += python_env_imports.at_run_time(env, python, item)
    if uv:
        findings += _consistency(env, uv, python, item)
        proven.append("requirements hold together")
    task.line("%s: proven in %.1f s, %d findings" % (item["name"], time.time() - started, len(findings)))
    return {"packages": report["packages"], "findings": findings, "proven": proven, "untried": untried,
            "imports": report["imports"]}


def proof_environment(env, root):
    """What proofs run with: what packages write when they are imported (caches, counters) stays under our cache."""
    home = os.path.join(root, "cache", "proof")
    env = dict((key, value) for key, value in env.items() if not key.startswith("XDG_"))
    env.update(HOME=home, XDG_CACHE_HOME=os.path.join(home, ".cache"), VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    return env


def commands(task, item, prefix, report):
    """Run the commands that must answer (`vllm --version`), with the words that must stand in what they say. Adds to
    the findings, the proven and the untried of `report`."""
    from bringup.agent.modules import python_env_build

    env = dict(proof_environment(python_env_build.environment(task, item), task.root), COLUMNS="4000")
    findings = report["findings"]
    for one in (item.get("verify") or {}).get("commands") or []:
        words = [str(word) for word in one["run"]]
        shown = " ".join(words)
        program = os.path.join(prefix, "bin", words[0])
        try:
            done = run([program] + words[1:], env, 300)
        except Failure as error:
            findings.append({"check": "commands", "summary": "%s does not start" % words[0], "expected": program,
                             "found": error.message})
            continue
        reason = python_env_imports.without_device(done.stderr) if done.rc != 0 else None
        if reason:
            report["untried"].append("`%s`: %s" % (shown, reason))
            continue
        if done.rc != 0:
            end = "no end after 300 s" if done.timed_out else "rc %d" % done.rc
            findings.append({"check": "commands", "summary": "`%s` fails" % shown, "expected": "rc 0",
                             "found": "%s: %s" % (end, last_line(done.stderr or done.stdout))})
            continue
        unknown = [word for word in one.get("says") or [] if not _said(word, done.stdout)]
        if unknown:
            findings.append({"check": "commands", "summary": "`%s` does not know %s" % (shown, ", ".join(unknown)),
                             "expected": ", ".join(one["says"]), "found": "%d lines without them"
                             % len(done.stdout.splitlines())})
            continue
        report["proven"].append("`%s` %s" % (shown, "knows %d flags" % len(one["says"]) if one.get("says") else
                                   "answers " + last_line(done.stdout)[:60]))


def _said(word, text):
    """Whether a word stands in a text by itself: `--tp` is not said by `--tp-size`."""
    return re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(word), text) is not None


def _outside(env, python, prefix):
    """Nothing of another environment, of the user or of the system's site is importable, with -I and without."""
    findings = []
    real = os.path.realpath(prefix)
    for words in ([python, "-I"], [python]):
        own, base, path, user = document(env, words + ["-c", _PATHS], "ask for sys.path")
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
        said = document(env, [python, "-I", "-c", _CONFIG, place], "load a model configuration")
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
