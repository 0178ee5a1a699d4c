"""Running the tools that change accounts and groups."""

from bringup.agent.task import Failure


def change(task, command, out, stdin=None):
    """Run one tool, not in check mode; marks the result changed. Raises Failure with what the tool said."""
    out["changed"] = True
    if task.check:
        return
    done = task.command(command, stdin=stdin)
    if done.rc != 0:
        text = (done.stderr or done.stdout).strip()
        fields = {"rc": done.rc, "found": text.splitlines()[-1] if text else "", "name": out.get("name")}
        if "Permission denied" in text or "cannot lock" in text and done.rc == 10:
            fields["next"] = "say become: true; or another tool is changing accounts: try again"
        raise Failure(text or "%s ended with %d" % (command[0], done.rc), **fields)
