"""Answer, to show that modules run on the host."""

from bringup.agent.task import Failure

ARGUMENTS = {"data": {"type": "str", "default": "pong"}}


def run(task):
    data = task.args.get("data", "pong")
    if data == "crash":
        raise Failure("boom")
    return {"changed": False, "ping": data}
