"""What a watcher does next, from what it sees here, what the others say, and the time. Nothing else. Python 3.6."""

WATCHING = "watching"
DOWN = "down"
STARTING = "starting"
GIVEN_UP = "given up"
OFF = "off"
"""An operator stopped the process or started another release: the watcher does nothing until it is set up anew."""

HOUR = 3600.0
SETTLE = 3.0
"""Seconds that the replica is down before it starts: what ended has given its devices and ports back by then."""
WAITING = 120.0
"""Seconds after which a replica that is down and cannot start is worth a call."""


class Memory(object):
    """What a watcher keeps over its own end. `attempts` are the times of restarts, `attempt` numbers them for all."""

    FIELDS = ("phase", "cause", "since", "attempts", "attempt", "alerted")

    def __init__(self, now, kept=None):
        kept = kept or {}
        self.phase = kept.get("phase") or WATCHING
        self.cause = kept.get("cause") or ""
        self.since = kept.get("since") or now
        self.attempts = list(kept.get("attempts") or [])
        self.attempt = int(kept.get("attempt") or 0)
        self.alerted = kept.get("alerted") or ""
        self.waits = ""

    def kept(self):
        return dict((name, getattr(self, name)) for name in self.FIELDS)

    def enter(self, phase, now, cause=None):
        self.phase, self.since = phase, now
        if cause is not None:
            self.cause = cause

    def lately(self, now):
        """Restarts of the last hour."""
        return [at for at in self.attempts if now - at < HOUR]


class Peer(object):
    """Another watcher of the replica: where it answers, when it was heard last, and what it said."""

    def __init__(self, node, node_rank, now, address="", port=0):
        self.address = address
        self.port = port
        self.node = node
        self.node_rank = node_rank
        self.heard = now
        self.report = {}

    def said(self, name):
        return self.report.get(name)


class Here(object):
    """This node: the process's state as its manager sees it, what is gone of it, the release that the node names."""

    def __init__(self, state, release=None, named=None, missing=(), leftover=(), ended="", by_watcher=False):
        self.state = state
        self.release = release
        self.named = named
        self.missing = list(missing)
        self.leftover = list(leftover)
        self.ended = ended
        self.by_watcher = by_watcher

    @property
    def runs(self):
        return self.state == "running"

    @property
    def empty(self):
        return not self.runs and not self.leftover


def step(memory, spec, here, peers, serves, now):
    """The actions due now, in order: ("stop",), ("start",), ("alert", event, text). Changes the memory's phase.

    `spec` has node, node_rank, release, silence (s), restarts (an hour), start_limit (s). `serves`: the head's last
    token came; None where nobody asks (workers).
    """
    memory.waits = ""
    if memory.phase != OFF and _taken_away(spec, here):
        memory.enter(OFF, now, "stopped by an operator" if here.state != "running" else "another release was started")
        return []
    if memory.phase == OFF:
        if here.runs and here.release == spec["release"]:
            memory.enter(WATCHING, now, "")
        return []
    if memory.phase in (WATCHING, STARTING):
        cause = _broken_here(spec, here) or _broken_there(memory, spec, peers, now)
        if not cause and memory.phase == STARTING and now - memory.since > spec["start_limit"]:
            cause = "%s: not ready %d s after the restart" % (spec["node"], int(now - memory.since))
        if cause:
            memory.enter(DOWN, now, cause)
        elif memory.phase == STARTING:
            return _started(memory, spec, peers, serves, now)
        else:
            return []
    return _down(memory, spec, here, peers, now)


def _taken_away(spec, here):
    if here.state == "stopped":
        return not here.by_watcher
    return here.runs and here.release != spec["release"]


def _broken_here(spec, here):
    if here.missing:
        return "%s: a rank process is gone: %s" % (spec["node"], here.missing[0])
    if not here.runs:
        return "%s: the process ended %s" % (spec["node"], here.ended or "(it is %s)" % here.state)
    return ""


def _broken_there(memory, spec, peers, now):
    for peer in peers:
        if now - peer.heard > spec["silence"]:
            return "%s: its watcher has been silent for %d s" % (peer.node, int(now - peer.heard))
        phase = peer.said("phase")
        if not phase or peer.said("generation") != spec["generation"]:
            continue
        if phase in (DOWN, GIVEN_UP) and (peer.said("attempt") or 0) >= memory.attempt:
            return peer.said("cause") or "%s is down" % peer.node
        if phase == OFF:
            return "%s: %s" % (peer.node, peer.said("cause") or "its process was stopped")
        if phase == STARTING and (peer.said("attempt") or 0) > memory.attempt:
            return "%s starts anew" % peer.node
    return ""


def _started(memory, spec, peers, serves, now):
    if spec["node_rank"] == 0:
        if not serves:
            return []
        memory.enter(WATCHING, now)
        return [("note",), ("alert", "restarted", "serves again, restart %d: %s" % (memory.attempt, memory.cause))]
    head = _head(peers)
    if head.said("phase") == WATCHING and head.said("attempt") == memory.attempt:
        memory.enter(WATCHING, now)
        return [("note",)]
    return []


def _down(memory, spec, here, peers, now):
    actions = [] if here.empty else [("stop",)]
    if memory.phase == GIVEN_UP:
        return actions
    if spec["node_rank"] == 0:
        return actions + _lead(memory, spec, here, peers, now)
    head = _head(peers)
    if head.said("phase") == GIVEN_UP and head.said("generation") == spec["generation"]:
        memory.enter(GIVEN_UP, now)
        return actions
    due = head.said("phase") == STARTING and (head.said("attempt") or 0) > memory.attempt
    before = [peer for peer in peers if peer.node_rank < spec["node_rank"]]
    if due and here.empty and _of_one_mind(spec, here, before) is None \
            and all(peer.said("runs") and peer.said("phase") == STARTING for peer in before):
        memory.attempt = head.said("attempt")
        memory.attempts.append(now)
        memory.enter(STARTING, now)
        return actions + [("start",)]
    memory.waits = "for the head %s" % head.node
    if now - head.heard > spec["silence"] + WAITING:
        return actions + _call(memory, "waits", "is down and its head %s is silent: %s" % (head.node, memory.cause))
    return actions


def _lead(memory, spec, here, peers, now):
    """The head's part: start when all are down and name one release, give up after so many restarts in an hour."""
    if len(memory.lately(now)) >= spec["restarts"]:
        memory.enter(GIVEN_UP, now)
        return [("alert", "gave up", "stays down after %d restarts within an hour: %s" % (
            len(memory.lately(now)), memory.cause))]
    waits = _of_one_mind(spec, here, peers)
    for peer in peers:
        if waits is None and now - peer.heard > spec["silence"]:
            waits = "for %s, which is silent" % peer.node
        if waits is None and not (peer.said("phase") == DOWN and peer.said("empty")):
            waits = "for %s to be down" % peer.node
    if waits is None and (not here.empty or now - memory.since < SETTLE):
        waits = "for what ended here"
    if waits is None:
        memory.attempt += 1
        memory.attempts = memory.lately(now) + [now]
        memory.enter(STARTING, now)
        memory.alerted = ""
        return [("alert", "restarting", "starts again (%d of %d this hour): %s" % (
            len(memory.attempts), spec["restarts"], memory.cause)), ("start",)]
    memory.waits = waits
    if now - memory.since > WAITING:
        return _call(memory, "waits", "is down and waits %s: %s" % (waits, memory.cause))
    return []


def _of_one_mind(spec, here, peers):
    """None when every node names the release that was set up, by the same run; else what is waited for."""
    if here.named != spec["release"]:
        return "for an operator: %s names release %s" % (spec["node"], str(here.named)[:12])
    for peer in peers:
        if peer.report and (peer.said("named") != spec["release"] or peer.said("generation") != spec["generation"]):
            return "for an operator: %s names release %s" % (peer.node, str(peer.said("named"))[:12])
        if not peer.report:
            return "for %s, which was not heard yet" % peer.node
    return None


def _call(memory, event, text):
    if memory.alerted == text:
        return []
    memory.alerted = text
    return [("alert", event, text)]


def _head(peers):
    return min(peers, key=lambda peer: peer.node_rank)
