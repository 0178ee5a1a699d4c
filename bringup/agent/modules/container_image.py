"""The image of a release on this host: what it is known by, and bringing it here. Python 3.6.

Loaded from an archive an image has no digest of a registry, and its id depends on how the engine keeps images; the
list of its layers is the same everywhere.
"""

import hashlib
import os

from bringup.agent.processes import container_client
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["look", "bring"]},
    "client": {"type": "str", "required": True},
    "image": {"type": "str", "required": True},
    "archive": {"type": "str"},
}


def run(task):
    client, image = task.args["client"], task.args["image"]
    found = _look(client, image)
    if task.args["action"] == "look" or found["id"]:
        return dict(found, changed=False)
    archive = task.args.get("archive")
    if archive and not os.path.isfile(archive):
        raise Failure("the archive of the image is not there", found=archive, expected="a file of `%s save`" % client,
                      next="bring it to every host, or correct image_archive")
    if task.check:
        return dict(found, changed=True)
    program = container_client.path_of(client)
    words = [program, "load", "--input", archive] if archive else [program, "pull", image]
    done = task.command(words, stream=True)
    if done.rc != 0:
        what = "the image cannot be loaded" if archive else "the image cannot be pulled"
        raise container_client.failure(client, what, done.rc, done.stderr or done.stdout)
    found = _look(client, image)
    if not found["id"]:
        raise Failure("the archive does not hold the image", expected=image,
                      found=done.stdout.strip()[-200:] or archive,
                      next="name the image as `%s load` printed it" % client)
    return dict(found, changed=True)


def _look(client, image):
    """id, digests of registries, and the digest over its layers; id None where it is not here."""
    seen = container_client.inspect(client, "image", image)
    if seen is None:
        return {"id": None, "digests": [], "layers": None}
    layers = (seen.get("RootFS") or {}).get("Layers") or []
    total = hashlib.sha256("\n".join(layers).encode("utf-8")).hexdigest() if layers else None
    return {"id": seen.get("Id"), "digests": sorted(seen.get("RepoDigests") or []), "layers": total}
