"""The image of a release on this host: what it is known by, and bringing it here as a job. Python 3.6.

    look     id, digests of registries, digest over its layers; id None where it is not here
    start    the same; where it is not here the job that pulls it, or loads it from an archive, is started or found
    outcome  the same once the job has ended; a Failure with the client's words where the image is still not here

Loaded from an archive an image has no digest of a registry, and its id depends on how the engine keeps images; the
list of its layers is the same everywhere.
"""

import hashlib
import json
import os

from bringup.agent.modules import job
from bringup.agent.processes import container_client
from bringup.agent.task import Failure, Task

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["look", "start", "outcome"]},
    "client": {"type": "str", "required": True},
    "image": {"type": "str", "required": True},
    "archive": {"type": "str"},
}
_TAIL = 4000


def run(task):
    client, image, archive = task.args["client"], task.args["image"], task.args.get("archive")
    found = _look(client, image)
    if task.args["action"] == "look":
        return dict(found, changed=False)
    if found["id"]:
        _same(client, image, found)
        return dict(found, changed=task.args["action"] == "outcome", job=None)
    if task.args["action"] == "outcome":
        raise _failed(task, client, image, archive)
    if archive and not os.path.isfile(archive):
        raise Failure("the archive of the image is not there", found=archive, expected="a file of `%s save`" % client,
                      next="bring it to every host, or correct image_archive")
    if task.check:
        return dict(found, changed=True, job=None)
    program = container_client.path_of(client)
    argv = [program, "load", "--input", archive] if archive else [program, "pull", image]
    # a pull that ended is begun again: the engine keeps the layers that came
    started = _job(task, "start", argv=argv, again=True)
    return dict(found, changed=True, job=started["id"], attached=bool(started.get("attached")), output=0)


def job_id(client, image, archive):
    """The same for the same work, so that another run finds it."""
    text = json.dumps([client, image, archive])
    return "image-" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def _job(task, action, **more):
    args = dict((name, spec.get("default")) for name, spec in job.ARGUMENTS.items())
    args.update(action=action, id=job_id(task.args["client"], task.args["image"], task.args.get("archive")), **more)
    return job.run(Task(args, check=task.check, environment=task.environment, root=task.root, run_id=task.run_id,
                        lock_fd=task.lock_fd))


def _same(client, image, found):
    """Raise when a registry's digest was asked for and the image here is not known by it."""
    wanted = image.partition("@")[2]
    if wanted and found["digests"] and not any(digest.endswith("@" + wanted) for digest in found["digests"]):
        raise Failure("the image here is not the one that was asked for", expected=wanted,
                      found=", ".join(found["digests"]), next="%s image rm %s, then again" % (client, image))


def _failed(task, client, image, archive):
    state = _job(task, "follow", offset=0)
    said = state.get("text", "")[-_TAIL:]
    what = "the image cannot be loaded" if archive else "the image cannot be pulled"
    if state["state"] in ("lost", "cancelled"):
        return Failure("%s: its job %s: %s" % (what, state["state"], state.get("msg") or "it was stopped"),
                       next="the same command again: the layers that came are kept")
    if state["state"] != "done":
        # the client's last words tell why
        lines = [line for line in said.strip().splitlines() if line.strip()]
        return container_client.failure(client, what, state.get("rc"), lines[-1] if lines else state.get("msg") or "")
    return Failure("the archive does not hold the image" if archive else "the image was pulled and is not here",
                   expected=image, found=said.strip()[-200:] or archive,
                   next="name the image as `%s load` printed it" % client if archive else "%s images" % client)


def _look(client, image):
    """id, digests of registries, and the digest over its layers; id None where it is not here."""
    seen = container_client.inspect(client, "image", image)
    if seen is None:
        return {"id": None, "digests": [], "layers": None}
    layers = (seen.get("RootFS") or {}).get("Layers") or []
    total = hashlib.sha256("\n".join(layers).encode("utf-8")).hexdigest() if layers else None
    return {"id": seen.get("Id"), "digests": sorted(seen.get("RepoDigests") or []), "layers": total}
