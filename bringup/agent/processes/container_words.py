"""The words of `docker run` for an engine process: devices, mounts, limits, labels; one list, no shell. Python 3.6.

Pure but for what it asks of `seen`, a view of the host's files: exists, group, glob, outside.
"""

import glob
import json
import os

from bringup.agent.processes import proc
from bringup.agent.task import Failure

ROOT_LABEL, NAME_LABEL = "bringup.root", "bringup.name"
RELEASE_LABEL, RECORD_LABEL = "bringup.release", "bringup.record"
SHM_GB = 32
"""Default size of /dev/shm where the host's is not shared: a node of 8 ranks takes some GB, Docker gives 64 MB."""

_ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_ASCEND_FILES = (
    ("/usr/local/Ascend/driver/lib64", True), ("/usr/local/Ascend/driver/version.info", True),
    ("/etc/ascend_install.info", True), ("/usr/local/dcmi", True), ("/usr/local/bin/npu-smi", True),
    ("/usr/local/sbin/npu-smi", False), ("/usr/local/Ascend/driver/tools/hccn_tool", False),
)
HCCN = "/etc/hccn.conf"
"""Addresses of the NPUs' own ports: needed where ranks of several nodes meet."""


class Host(object):
    """The host's own files."""

    def exists(self, path):
        return os.path.exists(path)

    def group(self, path):
        try:
            return os.stat(path).st_gid
        except OSError:
            return None

    def glob(self, pattern):
        return sorted(glob.glob(pattern))

    def outside(self, folder):
        """Folders outside of `folder` that links in it point into: a download cache keeps its files elsewhere."""
        real, out = os.path.realpath(folder), set()
        try:
            names = os.listdir(folder)
        except OSError:
            return []
        for name in names:
            path = os.path.join(folder, name)
            target = os.path.dirname(os.path.realpath(path))
            if os.path.islink(path) and target != real and not target.startswith(real + "/"):
                out.add(target)
        return sorted(out)


def container_name(name):
    return "bringup-" + name


def needed(document, seen):
    """What of the container's devices and files this host lacks: (path, what it is), in order."""
    box = document["container"]
    out = []
    if box["brand"] == "Huawei":
        out += [(path, "device") for path in _ascend_devices(box) if not seen.exists(path)]
        out += [(path, "part of the driver") for path, must in _ascend_files(box)
                if must and not seen.exists(path)]
    elif box["brand"] == "AMD":
        out += [(path, "device") for path in ("/dev/kfd", "/dev/dri") if not seen.exists(path)]
    out += [(_split(mount)[0], "mount of the inventory") for mount in box["mounts"]
            if not seen.exists(_split(mount)[0])]
    return out


def run_words(place, document, owner, env_file, grace, mark, seen):
    """Everything behind `docker run`, the image and the command included.

    `owner` is (name, uid, gid, home) or None where the agent is no root; `env_file` holds the secrets or is None.
    """
    box = document["container"]
    words = ["--detach", "--name", container_name(place.name), "--restart", "no", "--pull", "never"]
    if box["client_kind"] == "docker":
        words += ["--init", "--log-driver", "json-file"]
    words += _labels(place, document, mark)
    words += ["--stop-signal", "SIGTERM", "--stop-timeout", "%d" % max(1, int(grace))]
    words += ["--ulimit", "memlock=-1:-1", "--ulimit", "nofile=1048576:1048576", "--ulimit", "core=0:0"]
    words += _network(document, seen) + _devices(box, seen)
    user, variables = _user(place, box, owner, seen)
    words += user
    for source, target, mode in _mounts(place, document, seen):
        words += ["--mount", "type=bind,source=%s,target=%s%s" % (source, target, mode)]
    variables.update({proc.MARK: mark, "LANG": "C.UTF-8"})
    for name in sorted(variables):
        words += ["--env", "%s=%s" % (name, variables[name])]
    if env_file:
        words += ["--env-file", env_file]
    words += ["--workdir", place.work] + list(box["options"])
    return words + ["--entrypoint", "/bin/sh", box["image"], place.script(document["release"])]


def _labels(place, document, mark):
    kept = dict((key, document.get(key)) for key in ("release", "replica", "node", "node_rank", "role", "ranks",
                                                     "world_size", "ports"))
    kept.update(addresses=document.get("addresses") or [], mark=mark)
    words = []
    for name, value in ((ROOT_LABEL, place.root), (NAME_LABEL, place.name), (RELEASE_LABEL, document["release"]),
                        (RECORD_LABEL, json.dumps(kept, sort_keys=True))):
        words += ["--label", "%s=%s" % (name, value)]
    return words


def _network(document, seen):
    """Several nodes and NPUs take the host's network; else only the ports are let through."""
    box = document["container"]
    if box["nodes"] > 1:
        words = ["--network", "host", "--ipc", "host"]
        if seen.exists("/dev/infiniband"):
            words += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
        return words
    words = ["--shm-size", "%dg" % box["shm_gb"]]
    if box["brand"] == "Huawei" or document.get("addresses"):
        return ["--network", "host"] + words
    for port in document["ports"]:
        words += ["--publish", "%d:%d" % (port, port)]
    return words


def _devices(box, seen):
    devices = box["devices"]
    if box["brand"] == "NVIDIA":
        if box["client_kind"] == "podman":
            names = ["all"] if box["whole"] else [str(number) for number in devices]
            return [word for name in names for word in ("--device", "nvidia.com/gpu=" + name)]
        return ["--gpus", "all" if box["whole"] else '"device=%s"' % ",".join(str(number) for number in devices)]
    if box["brand"] == "AMD":
        return ["--device", "/dev/kfd", "--device", "/dev/dri", "--security-opt", "seccomp=unconfined",
                "--cap-add", "SYS_PTRACE"]
    if box["brand"] == "Huawei":
        return [word for path in _ascend_devices(box) for word in ("--device", path)]
    return []


def _ascend_devices(box):
    return ["/dev/davinci%d" % number for number in box["devices"]] + list(_ASCEND_DEVICES)


def _ascend_files(box):
    return list(_ASCEND_FILES) + [(HCCN, box["nodes"] > 1)]


def _user(place, box, owner, seen):
    """The engines' account and the groups of its devices; nothing where the image's own user is asked for."""
    variables = {"HOME": place.work}
    groups = []
    if box["brand"] == "AMD":
        # by number: the image may know no group `render`, or another number for it
        paths = ["/dev/kfd"] + seen.glob("/dev/dri/renderD*") + seen.glob("/dev/dri/card*")
        groups = sorted(set(str(number) for number in map(seen.group, paths) if number))
        groups = groups or ["video", "render"]
    elif box["brand"] == "Huawei":
        number = seen.group("/dev/davinci_manager")
        groups = [str(number)] if number else []
    words = [word for group in groups for word in ("--group-add", group)]
    if box["user"] == "image":
        return words, {}
    if owner is None:
        if box["client_kind"] == "podman":
            return words + ["--userns", "keep-id"], variables
        return words + ["--user", "%d:%d" % (os.getuid(), os.getgid())], _named(variables, "bringup")
    if owner[1] == 0:
        return words, variables
    return words + ["--user", "%d:%d" % (owner[1], owner[2])], _named(variables, owner[0])


def _named(variables, name):
    """The image has no such account: what asks for its name finds it here."""
    return dict(variables, USER=name, LOGNAME=name)


def _mounts(place, document, seen):
    """(source, target, mode): the script, the work folder, that of compiled caches, the model as it lies on the host,
    the vendor's files."""
    box = document["container"]
    script = place.script(document["release"])
    out = [(script, script, ",readonly"), (place.work, place.work, "")]
    if box.get("caches"):
        out.append((box["caches"], box["caches"], ""))
    model = document.get("model_path")
    if model and model.startswith("/"):
        out += [(path, path, ",readonly") for path in [model] + seen.outside(model)]
    if box["brand"] == "Huawei":
        out += [(path, path, ",readonly") for path, _ in _ascend_files(box) if seen.exists(path)]
    for mount in box["mounts"]:
        source, target, writable = _split(mount)
        out.append((source, target, "" if writable else ",readonly"))
    for source, target, _ in out:
        if "," in source or "," in target:
            raise Failure("a path with a comma cannot be mounted: %s" % source)
    return out


def _split(mount):
    """`/path`, `/path:/inside` or `/path:/inside:rw`: (source, target, writable)."""
    parts = mount.split(":")
    source, target = parts[0], parts[1] if len(parts) > 1 and parts[1] else parts[0]
    return source, target, len(parts) > 2 and parts[2] == "rw"
