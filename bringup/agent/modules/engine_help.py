"""What an installed engine prints about its own flags; asked once for each environment or image. Python 3.6.

Importing an engine takes up to half a minute, so the answer is kept in the cache under the digest it belongs to.
"""

import hashlib
import os

from bringup.agent.processes import container_client, proc
from bringup.agent.processes.launch import CLEAN_PATH

ARGUMENTS = {
    "commands": {"type": "list", "required": True},
    "key": {"type": "str", "required": True},
    "env": {"type": "dict", "default": {}},
    "client": {"type": "str"},
    "image": {"type": "str"},
    "timeout": {"type": "float", "default": 300.0},
}
LONGEST = 4 * 1024 * 1024


def run(task):
    """`text` is what the first of the commands printed that ended with 0, None with `reason` when none did."""
    commands = [[str(word) for word in words] for words in task.args["commands"]]
    name = hashlib.sha256(repr((task.args["key"], commands)).encode("utf-8")).hexdigest()
    path = os.path.join(task.root, "cache", "help", name[:32] + ".json")
    kept = proc.read_json(path)
    if kept is not None and isinstance(kept.get("text"), str):
        return {"changed": False, "text": kept["text"], "cached": True, "reason": None}
    reason = "no command was given"
    for words in commands:
        done = _ask(task, words)
        if done.rc == 0 and "--" in done.stdout:
            text = done.stdout[:LONGEST]
            if not task.check:
                proc.make_folder(os.path.dirname(path))
                proc.write_json(path, {"commands": commands, "key": task.args["key"], "text": text})
            return {"changed": False, "text": text, "cached": False, "reason": None}
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        end = "its deadline" if done.timed_out else done.rc
        reason = "%s ended with %s: %s" % (" ".join(words[-2:]), end, last[:200])
    return {"changed": False, "text": None, "cached": False, "reason": reason}


def _ask(task, words):
    env = dict((str(k), str(v)) for k, v in task.args["env"].items())
    env.setdefault("PATH", CLEAN_PATH)
    env["COLUMNS"] = "4000"
    env.update(HOME=os.path.join(task.root, "cache", "help"), PYTHONDONTWRITEBYTECODE="1", VLLM_NO_USAGE_STATS="1")
    if task.args.get("image"):
        argv = [container_client.path_of(task.args.get("client") or "docker"), "run", "--rm", "--pull", "never",
                "--network", "none", "--entrypoint", words[0], "--env", "COLUMNS=4000", task.args["image"]] + words[1:]
        return task.command(argv, timeout=task.args["timeout"])
    return task.command(["env", "-i"] + ["%s=%s" % item for item in sorted(env.items())] + words,
                        timeout=task.args["timeout"])
