"""Commands run for environments, with exactly the environment that is given. Python 3.6."""

import json
import subprocess
import time

from bringup.agent.task import Completed, Failure, end_group


def document(env, argv, what):
    """The JSON document in the last line of what a command prints. Raises Failure: cannot `what`."""
    done = run(argv, env, 300)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Failure("cannot %s" % what, rc=done.rc, found=last_line(done.stderr) or "no answer", stderr=done.stderr)


def run(argv, env, timeout):
    """Run a command with exactly this environment (settings may hold secrets: never as words of a command line).

    Returns a Completed; a deadline ends the whole process group. Raises Failure when it cannot be started.
    """
    started = time.time()
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=env, start_new_session=True)
    except OSError as error:
        raise Failure("cannot run %s: %s" % (argv[0], error.strerror or error), rc=error.errno or 2)
    late = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
        end_group(process)
        out, err = process.communicate()
    return Completed(argv, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"),
                     time.time() - started, late)


def last_line(text):
    """The last line of a text that holds something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
