"""What was carried for a host besides environments: system packages and images, sent by the controller. Python 3.6.

`packages` is a list of sets, each for one release and architecture: {"release", "architecture", "names", "index",
"files": {name: digest}}; the set of this host is taken. `images` is a list of {"layers", "tags", "digest"}:
`layers` is the digest over its layers that `container_image` tells; `client` is the container engine's.
"""

import os
import platform
import shutil
import time

from bringup.agent.modules import _apt, container_image, python_env_build
from bringup.agent.processes import container_client
from bringup.agent.task import Failure

ARGUMENTS = {
    "packages": {"type": "list", "default": []},
    "images": {"type": "list", "default": []},
    "client": {"type": "str", "default": "docker"},
    "lock_timeout": {"type": "int", "default": 300},
}


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def run(task):
    out = {"changed": False, "packages": [], "images": []}
    if task.args["packages"]:
        out["packages"] = _packages(task, _mine(task))
    for image in task.args["images"]:
        if _load(task, image):
            out["images"].append(image["tags"][0])
    out["changed"] = bool(out["packages"] or out["images"])
    return out


def _mine(task):
    """The set for this host's release and architecture. Raises Failure when none was carried."""
    release = codename()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())  # a host without dpkg is told too
    for one in task.args["packages"]:
        if (one["release"], one["architecture"]) == (release, architecture):
            return one
    raise Failure("no system packages were carried for this host", found="%s %s" % (release, architecture),
                  expected=", ".join("%(release)s %(architecture)s" % one for one in task.args["packages"]),
                  next="name this release under system_packages and make the bundle anew")


def codename():
    """VERSION_CODENAME of /etc/os-release, or `unknown`."""
    try:
        with open("/etc/os-release") as file:
            for line in file:
                if line.startswith("VERSION_CODENAME="):
                    return line.split("=", 1)[1].strip().strip("\"'")
    except OSError:
        pass  # a system that does not say its release has none here
    return "unknown"


def _packages(task, wanted):
    """Install the names that are not there, from the files that were sent alone. Returns what was installed."""
    names = [name for name in wanted["names"] if not _apt._satisfied(_apt._installed(task), name)]
    if not names:
        return []
    if task.check:
        return names
    place = os.path.join(task.root, "cache", "debs", "%s-%s" % (wanted["release"], wanted["architecture"]))
    lists = os.path.join(place, "lists")
    if not os.path.isdir(os.path.join(lists, "partial")):
        os.makedirs(os.path.join(lists, "partial"))
    for name, digest in sorted(wanted["files"].items()):
        _keep(task, os.path.join(place, os.path.basename(name)), digest)
    _keep(task, os.path.join(place, "Packages"), wanted["index"])
    source = os.path.join(place, "carried.list")
    with open(source, "w") as file:
        # each file's digest was proven on its way here: no key signs a carried folder
        file.write("deb [trusted=yes] file:%s ./\n" % place)
    options = ["-o", "Dir::Etc::sourcelist=%s" % source, "-o", "Dir::Etc::sourceparts=/dev/null",
               "-o", "Dir::State::lists=%s" % lists, "-o", "APT::Sandbox::User="]
    deadline = time.monotonic() + task.args["lock_timeout"]
    _apt._apt_get(task, options + ["update"], deadline)
    words = options + ["--no-install-recommends", "install"] + names
    planned = _apt._plan(task, words)
    _apt._apt_get(task, words, deadline)
    return ["%s %s" % (name, version) for verb, name, _, version in planned if verb == "Inst"]


def _keep(task, path, digest):
    if python_env_build._sha256(path) != digest:
        staged = "%s.%d" % (path, os.getpid())
        shutil.copyfile(task.blob(digest), staged)
        os.rename(staged, path)


def _load(task, image):
    """Load an image unless the engine has it under each of its names. Returns whether it was (or would be) loaded."""
    client = task.args["client"]
    if all(container_image._look(client, tag)["layers"] == image["layers"] for tag in image["tags"]):
        return False
    if task.check:
        return True
    done = task.command([container_client.path_of(client), "load", "--input", task.blob(image["digest"])], stream=True)
    if done.rc != 0:
        raise container_client.failure(client, "the image cannot be loaded", done.rc, done.stderr or done.stdout)
    for tag in image["tags"]:
        if container_image._look(client, tag)["layers"] != image["layers"]:
            raise Failure("the archive did not bring the image", expected=tag, found=done.stdout.strip()[-200:])
    return True
