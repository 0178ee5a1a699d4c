"""A build that came from another host: compared with what was built there, proven here, then named. Python 3.6.

It lies, whole, in `out` of the hidden folder beside its name (tree_transfer brought it). What is not proven is put
aside as `out-failed` until the next try, so that the next transfer begins anew.
"""

import os
import shutil

from bringup.agent.modules import kernel_build
from bringup.agent.task import Failure

ARGUMENTS = {
    "build": {"type": "dict", "required": True},
    "source": {"type": "str"},
}


def run(task):
    os.umask(0o022)
    build, source = task.args["build"], task.args.get("source")
    digest = build["digest"]
    there = kernel_build.found(task.root, digest)
    if there["sound"]:
        return {"changed": False, "build": there, "from": source}
    if task.check:
        return {"changed": True}
    place = kernel_build.staging(task.root, digest, "take")
    out, failed = os.path.join(place, "out"), os.path.join(place, "out-failed")
    shutil.rmtree(failed, ignore_errors=True)
    spec = dict(build["spec"], mode="receive", digest=digest, target=kernel_build.folder(task.root, digest))
    kernel_build.lay(task, place, spec, build.get("files"), build["runner"])
    result = kernel_build.run_here(place)
    if not result.get("ok"):
        if os.path.isdir(out):
            os.rename(out, failed)
        failure = Failure("%s came over and is not proven here" % build["name"])
        failure.fields.update(result, folder=place)  # it has a `message` of its own
        raise failure
    shutil.rmtree(place, ignore_errors=True)
    return {"changed": True, "build": kernel_build.found(task.root, digest), "from": source}
