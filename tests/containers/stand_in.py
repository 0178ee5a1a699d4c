#!/usr/bin/env python3
"""A stand-in for the Docker client: records every call and runs the command on this machine, without a namespace.

It takes the options of the real client alone (read from its recorded help text), keeps containers in `state/` beside
itself and images in `images.json`: name -> {Id, RepoDigests, RootFS, path (put before PATH), archive (where from)}.
"""

import calendar
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
STATE = os.path.join(HERE, "state")
OWN = "STAND_IN_CONTAINER"


def options_of(text):
    """option -> True where it takes a value, from the help text of `docker run`."""
    found = {}
    for match in re.finditer(r"^\s+(?:(-\w), )?(--[\w-]+)(?: (\w[\w-]*))?(?:  |$)", text, re.M):
        for name in (match.group(1), match.group(2)):
            if name:
                found[name] = match.group(3) is not None
    return found


def die(text, code=125):
    sys.stderr.write(f"docker: {text}\n")
    sys.exit(code)


def images():
    with open(os.path.join(HERE, "images.json")) as handle:
        return json.load(handle)


def image_of(name):
    for key, image in images().items():
        if name in (key, image["Id"]) or name in image.get("RepoDigests", []):
            away = image.get("archive") and not os.path.exists(os.path.join(HERE, "loaded"))
            return None if away or (image.get("remote") and not os.path.exists(pulled_mark(image))) else image
    return None


def pulled_mark(image):
    return os.path.join(HERE, "pulled-" + image["Id"][-12:])


def pull(words):
    """Layer by layer as Docker tells it; `registry.json` beside us: seconds a layer takes, an error that ends it."""
    image = next((i for key, i in images().items() if words[0] in (key, *i.get("RepoDigests", []))), None)
    if image is None:
        die(f"Error response from daemon: manifest for {words[0]} not found: manifest unknown", 1)
    path = os.path.join(HERE, "registry.json")
    how = {}
    if os.path.exists(path):
        with open(path) as handle:
            how = json.load(handle)
    layers = ["%012x" % (number + 0xa0) for number in range(6)]
    print(f"{words[0]}: Pulling from {words[0]}", flush=True)
    for layer in layers:
        print(f"{layer}: Pulling fs layer", flush=True)
    for number, layer in enumerate(layers):
        time.sleep(how.get("seconds", 0))
        if number == 3 and how.get("error"):
            die(how["error"], 1)
        print(f"{layer}: Download complete\n{layer}: Pull complete", flush=True)
    with open(pulled_mark(image), "w"):
        print(f"Status: Downloaded newer image for {words[0]}")
    return 0


def record(words):
    with open(os.path.join(HERE, "calls.jsonl"), "a") as handle:
        handle.write(json.dumps(words) + "\n")


def containers():
    out = []
    if os.path.isdir(STATE):
        for name in sorted(os.listdir(STATE)):
            with open(os.path.join(STATE, name, "config.json")) as handle:
                out.append(json.load(handle))
    return out


def container(name):
    return next((c for c in containers() if name == c["Name"] or c["Id"].startswith(name)), None)


def save(config):
    path = os.path.join(STATE, config["Id"], "config.json")
    with open(path + ".new", "w") as handle:
        json.dump(config, handle)
    os.rename(path + ".new", path)


def stamp(moment):
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
    return f"{text}.{int(moment % 1 * 1e9):09d}Z"


def parse_run(words):
    with open(os.path.join(HERE, "docker-run-help.txt")) as handle:
        known = options_of(handle.read())
    given, at = {}, 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name not in known:
            die(f"unknown flag: {name}")
        if known[name] and not equals:
            at += 1
            value = words[at]
        given.setdefault(name, []).append(value if known[name] else True)
        at += 1
    return given, words[at], words[at + 1:]


def run(words):
    given, name, command = parse_run(words)
    image = image_of(name)
    if image is None:
        die(f"Error response from daemon: No such image: {name}")
    if container(given.get("--name", [""])[0]):
        die("Error response from daemon: Conflict. The container name is already in use")
    for mount in given.get("--mount", []):
        source = dict(part.partition("=")[::2] for part in mount.split(","))["source"]
        if not os.path.exists(source):
            die("Error response from daemon: invalid mount config for type bind: bind source path does not exist: "
                + source)
    env = {"PATH": image.get("path", "") + ":/usr/local/bin:/usr/bin:/bin", OWN: uuid.uuid4().hex * 2}
    env.update((key, value) for key, value in os.environ.items() if key.startswith("BRINGUP_LAB"))
    for path in given.get("--env-file", []):
        record(["env-file", f"{stat.S_IMODE(os.stat(path).st_mode):o}"])
        with open(path) as handle:
            env.update(line.rstrip("\n").partition("=")[::2] for line in handle)
    env.update(word.partition("=")[::2] for word in given.get("--env", []))
    argv = given.get("--entrypoint", []) + command
    if "--detach" not in given:
        return subprocess.call(argv, env=env, stdin=subprocess.DEVNULL)
    config = {"Id": env[OWN], "Name": given["--name"][0], "Image": image["Id"], "Config": {
        "Labels": dict(word.partition("=")[::2] for word in given.get("--label", []))},
        "State": {"Status": "created", "Running": False, "Pid": 0, "ExitCode": 0, "OOMKilled": False, "Error": "",
                  "StartedAt": stamp(time.time()), "FinishedAt": "0001-01-01T00:00:00Z"}}
    os.makedirs(os.path.join(STATE, config["Id"]))
    save(config)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            keep(config, argv, env, given.get("--workdir", ["/"])[0])
        os._exit(0)
    end = time.time() + 10
    while not (container(config["Id"]) or config)["State"]["Pid"] and time.time() < end:
        time.sleep(0.01)
    print(config["Id"])
    return 0


def keep(config, argv, env, folder):
    """What the engine does: start the first process, keep its lines, end all of the container when it ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    try:
        child = subprocess.Popen(argv, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 start_new_session=True)
        config["State"].update(Status="running", Running=True, Pid=child.pid)
        save(config)
        reader = threading.Thread(target=keep_lines, args=(config["Id"], child.stdout), daemon=True)
        reader.start()
        code = child.wait()
        end_all(config["Id"])
        reader.join(1)  # a process that left the container may hold its output open
        config["State"].update(Status="exited", Running=False, Pid=0, FinishedAt=stamp(time.time()),
                               ExitCode=code if code >= 0 else 128 - code)
        save(config)
    finally:
        os._exit(0)


def keep_lines(own, pipe):
    with open(os.path.join(STATE, own, "log"), "ab", 0) as log:
        for line in iter(pipe.readline, b""):
            log.write(stamp(time.time()).encode() + b" " + line.rstrip(b"\n") + b"\n")


def members(own):
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as handle:
                    if (f"{OWN}={own}").encode() in handle.read().split(b"\0"):
                        out.append(int(name))
            except OSError:
                continue
    return out


def end_all(own):
    for pid in members(own):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def stop(words):
    config = container(words[2]) or die("Error response from daemon: No such container: " + words[2], 1)
    pid, end = config["State"]["Pid"], time.time() + int(words[1])
    if config["State"]["Running"]:
        os.kill(pid, signal.SIGTERM)
        while time.time() < end and container(config["Id"])["State"]["Running"]:
            time.sleep(0.05)
        if container(config["Id"])["State"]["Running"]:
            os.kill(pid, signal.SIGKILL)
            end_all(config["Id"])
        while container(config["Id"])["State"]["Running"]:
            time.sleep(0.05)
    print(words[2])
    return 0


def logs(words):
    config = container(words[-1]) or die("Error response from daemon: No such container: " + words[-1], 1)
    try:
        with open(os.path.join(STATE, config["Id"], "log"), "rb") as handle:
            lines = handle.read().decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    if "--since" in words:
        since = words[words.index("--since") + 1]
        calendar.timegm(time.strptime(since[:19], "%Y-%m-%dT%H:%M:%S"))  # an engine refuses what is no time
        lines = [line for line in lines if line.split(" ", 1)[0] >= since]
    if "--tail" in words:
        lines = lines[-int(words[words.index("--tail") + 1]):]
    for line in lines:
        print(line)
    return 0


def inspect(words):
    if words[0] == "image":
        found, name = image_of(words[2]), words[2]
        kind = "image"
    else:
        found, name, kind = container(words[3]), words[3], "container"
    if found is None:
        sys.stderr.write(f"Error response from daemon: No such {kind}: {name}\n")
        print("[]")
        return 1
    print(json.dumps([found]))
    return 0


def remove(words):
    config = container(words[0]) or die("Error response from daemon: No such container", 1)
    if config["State"]["Running"]:
        die("Error response from daemon: cannot remove container: container is running", 1)
    folder = os.path.join(STATE, config["Id"])
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    return 0


def listing(words):
    label = words[words.index("--filter") + 1].partition("label=")[2]
    name, _, value = label.partition("=")
    for config in containers():
        if config["Config"]["Labels"].get(name) == value:
            print(config["Name"])
    return 0


def load(words):
    with open(words[1]) as handle:
        print("Loaded image: " + handle.read().strip())
    with open(os.path.join(HERE, "loaded"), "w"):
        return 0


def main(words):
    record(words)
    if os.path.exists(os.path.join(HERE, "down")):
        die("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", 1)
    verbs = {"run": run, "stop": stop, "logs": logs, "rm": remove, "ps": listing, "load": load, "pull": pull}
    if words[0] in ("inspect", "image"):
        return inspect(words)
    if words[0] in verbs:
        return verbs[words[0]](words[1:])
    return die(f"'{words[0]}' is not a docker command.", 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
