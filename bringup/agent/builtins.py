"""Requests that the agent answers itself: the lock, the journal, taking over. Python 3.6.

Each is a generator: it yields while it waits (the loop goes on) and returns the task's result.
"""

import os
import time

from bringup.agent import pids
from bringup.agent.journal import Journal, look_up, note_run, release_in_use, runs_of
from bringup.agent.lock import Lock, Refused, Unavailable, state_folder

MARK = "BRINGUP_RUN"
"""In the environment of every command that a run waits for: how its processes are found again."""


def lock(agent, args):
    """Take the lock, or refresh the record of a lock that is ours. args: verb, step, wait (seconds), force (bool).

    Result `state`: `locked` (with `previous`, the record of an unfinished run of the same operator, or None, and
    `jobs`, whether jobs of it go on), `held` (`record`), `unfinished` (`record`: somebody else's run that has no
    living holder), `unavailable` (`reason`: no lock can be kept here).
    """
    steps = dict((key, args[key]) for key in ("verb", "step") if args.get(key) is not None)
    if agent.lock is not None:
        agent.lock.write_record(heard=round(time.time(), 3), **steps)
        return {"changed": False, "state": "locked", "previous": None, "jobs": False}
    own = Lock(agent.root)
    try:
        own.prepare()
        until = time.time() + float(args.get("wait") or 0)
        while not own.take():
            if time.time() >= until:
                return {"changed": False, "state": "held", "record": own.read_record() or {},
                        "now": round(time.time(), 3)}
            yield
    except Unavailable as error:
        return {"changed": False, "state": "unavailable", "reason": str(error)}
    except Refused as error:
        return dict(error.fields, failed=True, state="refused", msg=error.message)
    return _taken(agent, own, steps, args.get("force"), args.get("inventory"))


def _taken(agent, own, steps, force, inventory=None):
    previous = own.read_record()
    theirs = previous is not None and previous.get("run") != agent.run_id and not _same_operator(agent, previous)
    if theirs and not force:
        jobs = own.jobs_alive
        own.release(finished=False)
        return {"changed": False, "state": "unfinished", "record": previous, "jobs": jobs,
                "now": round(time.time(), 3)}
    jobs = own.jobs_alive
    record = dict(agent.identity(), since=round(time.time(), 3), heard=round(time.time(), 3), pid=os.getpid(),
                  started=pids.start_time(os.getpid()), boot=pids.boot_id(), step="", verb="")
    record.update(steps)
    own.write_record(record)
    own.clear_staging()
    own.forget_stop(agent.run_id)
    agent.retire_workers()  # the next ones are forked with the lock open
    agent.lock = own
    trouble = own.trouble
    journal = Journal(own.state, agent.run_id)
    try:
        journal.open()
        agent.journal = journal
        note_run(own.state, dict(agent.identity(), event="began", verb=steps.get("verb"), inventory=inventory,
                                 release=release_in_use(agent.root)))
    except OSError as error:
        trouble = "the journal cannot be written: %s" % (error.strerror or error)
    if trouble:
        agent.note(trouble)
    if previous is not None and previous.get("run") == agent.run_id:
        previous = None
    return {"changed": False, "state": "locked", "previous": previous, "jobs": jobs}


def _same_operator(agent, record):
    own = agent.identity()
    return record.get("operator") == own["operator"] and record.get("machine") == own["machine"]


def unlock(agent, args):
    """Give the lock of this run up, its record with it; or, with `run`, remove what a dead run left behind.

    Result `state`: `unlocked`, or failed with what is in the way.
    """
    run = args.get("run")
    if agent.lock is not None and run in (None, agent.run_id):
        agent.retire_workers()
        if agent.journal is not None:
            _note_end(agent, args.get("outcome"))
            agent.journal.close()
            agent.journal = None
        own, agent.lock = agent.lock, None
        _finish(own)
        return {"changed": False, "state": "unlocked"}
    if run is None:
        return {"changed": False, "state": "unlocked"}
    own = Lock(agent.root)
    record = own.read_record()
    if record is None or record.get("run") != run:
        return {"failed": True, "msg": "no run %s is recorded here" % run,
                "found": "run %s" % record.get("run") if record else "no record"}
    try:
        if not own.take():
            return {"failed": True, "msg": "run %s is alive" % run, "record": record,
                    "next": "let it end, or --take-over %s" % run}
    except Unavailable as error:
        return {"failed": True, "msg": str(error)}
    if own.jobs_alive:
        own.release(finished=False)
        return {"failed": True, "msg": "a job of run %s goes on" % run, "record": record,
                "next": "let it end, or cancel it"}
    own.release(finished=True)
    return {"changed": True, "state": "unlocked", "record": record}
    yield  # a generator like the others


def _note_end(agent, outcome):
    """How the run ended, for `invoke history`: its exit status as far as it is known, and what it did here."""
    try:
        note_run(agent.lock.state, {"event": "ended", "run": agent.run_id, "outcome": outcome,
                                    "tasks": agent.journal.counts, "release": release_in_use(agent.root)})
    except OSError as error:
        agent.note("the journal cannot be written: %s" % (error.strerror or error))


def _finish(own):
    """Release; jobs that go on keep the record, marked so."""
    record = dict(own.record or {})
    own.release(finished=True)
    if own.jobs_run():
        own.write_record(record, state="jobs")


def take_over(agent, args):
    """Ask the living run `run` to stop at the end of its task (waiting at most `timeout` seconds), prove that none of
    its processes is left, take the lock. Results as for `lock`; failed with what is in the way."""
    run = str(args.get("run") or "")
    own = Lock(agent.root)
    try:
        own.prepare()
        record = own.read_record()
        if record is None or record.get("run") != run:
            return {"failed": True, "msg": "no run %s is recorded here" % run,
                    "found": "run %s" % record.get("run") if record else "no record"}
        asked = False
        until = time.time() + float(args.get("timeout") or 120)
        while not own.take():
            if not asked:
                own.ask_to_stop(run, agent.identity())
                asked = True
            if time.time() >= until:
                own.forget_stop(run)
                return {"failed": True, "state": "held", "record": own.read_record() or record,
                        "msg": "run %s did not come to the end of its task in time" % run,
                        "next": "wait for it, or cancel it where it was started"}
            yield
        own.forget_stop(run)
    except (OSError, Unavailable) as error:
        return {"failed": True, "msg": "the run cannot be taken over: %s" % error}
    except Refused as error:
        return dict(error.fields, failed=True, msg=error.message)
    left = pids.marked(MARK, run)
    if left:
        own.release(finished=False)
        return {"failed": True, "msg": "processes of run %s are still alive" % run, "processes": left,
                "found": "; ".join("%d %s" % item for item in sorted(left.items())[:5]),
                "next": "end them on the host, then take over again"}
    steps = dict((key, args[key]) for key in ("verb", "step") if args.get(key) is not None)
    return dict(_taken(agent, own, steps, True, args.get("inventory")), previous=record, taken_over=run)


def journal(agent, args):
    """What became of tasks of a run: args run, digests (list; empty: all). Result `tasks`: digest -> state; `record`,
    `held`: the record beside the lock, and whether its lock is held."""
    state = state_folder(agent.root)
    held = Lock(agent.root).is_held() and (agent.lock is None or args.get("run") == agent.run_id)
    return {"changed": False, "tasks": look_up(state, str(args.get("run") or ""), args.get("digests") or [], held),
            "record": Lock(agent.root).read_record(), "held": held}
    yield  # a generator like the others


def runs(agent, args):
    """Every run that held the lock here: `runs` as `journal.runs_of` gives them, `held` (the id of the one under way,
    None without), `now` (this host's clock) and `boot`."""
    own = Lock(agent.root)
    record = own.read_record() if own.is_held() else None
    return {"changed": False, "runs": runs_of(state_folder(agent.root)), "held": (record or {}).get("run"),
            "now": round(time.time(), 3), "step": (record or {}).get("step")}
    yield  # a generator like the others


BUILTINS = {"lock": lock, "unlock": unlock, "take_over": take_over, "journal": journal, "runs": runs}
