"""Where a rollback lands after runs that were cut, failed, or left a host out; what gc leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bringup.base.errors import FindingError, InputError
from bringup.releases.document import Release
from bringup.releases.history import History, HostStore, merge
from bringup.releases.keeping import staying
from bringup.releases.reading import state_of
from bringup.releases.targets import candidates, rollback_target

HOSTS = ("gpu01", "gpu02")


def release(number: int) -> Release:
    return Release({"served_name": "glm", "world_size": 2, "replicas": [], "n": number}, {})


Step = tuple[Any, ...]


def store(steps: list[Step], current: int | None, *, clock: float = 0.0, gone: tuple[int, ...] = ()) -> HostStore:
    """`steps` are (event, number) or (event, number, more); `clock` is by how much this host's clock is off."""
    events = []
    for at, (event, number, *more) in enumerate(steps, 1):
        entry = {"event": event, "digest": release(number).digest, "at": at + clock, "run": f"run{at}",
                 "number": number if event in ("made", "pruned") else None, "by": "ops@deploy1",
                 **(dict(more[0]) if more else {})}
        for name in ("previous", "leaving"):
            if entry.get(name):
                entry[name] = release(int(entry[name])).digest
        events.append(entry)
    held = {release(n).digest: release(n) for n in sorted({int(s[1]) for s in steps}) if n not in gone}
    return HostStore(release(current).digest if current else None, held, {}, {}, events)


def live(n: int, **more: Any) -> list[Step]:
    return [("made", n), ("switched", n, more), ("started", n, {"seconds": 10.0 + n}), ("good", n)]


def all_of(steps: list[Step], current: int | None) -> History:
    return merge({host: store(steps, current) for host in HOSTS})


def number_of(history: History, to: str | None = None, **more: Any) -> int | None:
    entry = rollback_target(history, HOSTS, to, **more).entry
    return entry.number if entry else None


def test_a_rollback_that_was_cut_after_the_switch_goes_on_to_where_it_went_and_never_back() -> None:
    left: list[Step] = [*live(1), *live(2), *live(3), ("switched", 2, {"previous": 3, "leaving": 3}), ("left", 3)]
    history = all_of(left, 2)
    assert history.unfinished is not None and history.unfinished.pending == HOSTS
    target = rollback_target(history, HOSTS)
    assert target.finishes and target.entry is not None and target.entry.number == 2
    assert "finishes the rollback to r0002" in target.reason
    done = all_of([*left, ("started", 2), ("good", 2)], 2)
    assert done.unfinished is None and number_of(done) == 1


def test_a_host_that_a_rollback_never_reached_is_named_and_finished() -> None:
    before: list[Step] = [*live(1), *live(2)]
    history = merge({
        "gpu01": store([*before, ("switched", 1, {"previous": 2, "leaving": 2}), ("left", 2), ("started", 1),
                        ("good", 1)], 1),
        "gpu02": store(before, 2)})
    assert history.mixed and history.unfinished is not None and history.unfinished.pending == ("gpu02",)
    assert number_of(history) == 1
    assert [e.state for e in history.entries] == ["good", "left"]


def test_an_unfinished_rollback_to_one_that_is_bad_by_now_is_not_finished() -> None:
    history = all_of([*live(1), *live(2), *live(3), ("switched", 2, {"previous": 3, "leaving": 3}), ("left", 3),
                      ("bad", 2), ("switched", 3, {"previous": 2, "undo": True})], 3)
    assert [e.state for e in history.entries] == ["good", "bad", "good"], "the rollback away from r0003 was undone"
    assert number_of(history) == 1


def test_after_a_start_that_failed_and_was_undone_by_itself_nothing_goes_further_back() -> None:
    history = all_of([*live(1), *live(2), ("made", 3), ("switched", 3, {"previous": 2}), ("bad", 3),
                      ("switched", 2, {"previous": 3, "undo": True}), ("started", 2)], 2)
    target = rollback_target(history, HOSTS)
    assert target.entry is None and "r0003 did not start and r0002 is in use again already" in target.reason
    assert number_of(history, "r0001") == 1, "further back when it is named"


def test_a_release_prepared_again_and_not_switched_to_leaves_the_one_in_use() -> None:
    history = all_of([*live(1), *live(2), ("switched", 1, {}), ("started", 1), ("good", 1), ("prepared", 2)], 1)
    target = rollback_target(history, HOSTS)
    assert target.entry is None and "r0002 was never switched to" in target.reason


def test_clocks_of_hosts_are_not_compared() -> None:
    """gpu01 is an hour ahead: what it saw last is not the last word on gpu02."""
    history = merge({"gpu01": store([*live(1), *live(2)], 2, clock=3600),
                     "gpu02": store([*live(1), *live(2), ("bad", 2, {"reason": "no answer"})], 2)})
    assert [e.state for e in history.entries] == ["good", "bad"]
    assert history.entries[1].reason == "no answer"
    ahead = merge({"gpu01": store([*live(1), *live(2), ("made", 3)], 2),
                   "gpu02": store([*live(1), *live(2), ("made", 3)], 2, clock=3600)})
    assert rollback_target(ahead, HOSTS).entry is None, "r0003 waits, whatever the clocks say"


def by_host(**hosts: tuple[list[Step], int | None]) -> History:
    return merge({host: store(steps, current) for host, (steps, current) in hosts.items()})


def test_a_good_release_that_one_host_does_not_use_any_more_is_what_a_rollback_leaves() -> None:
    """A link changed by hand: the newest that was good everywhere is the one to leave, not the one to go to."""
    steps: list[Step] = [*live(1), *live(2)]
    history = by_host(gpu01=(steps, 2), gpu02=(steps, 1))
    assert history.by_hand == {"gpu02": release(2).digest} and not history.agreed
    target = rollback_target(history, HOSTS)
    assert target.entry is not None and target.entry.number == 1
    assert "r0002 was deployed last: it is undone" in target.reason
    assert number_of(by_host(gpu01=(steps, 2), gpu02=(steps, None)), None) == 1, "a link that is gone"
    everywhere = by_host(gpu01=(steps, 1), gpu02=(steps, 1))
    assert not everywhere.mixed and number_of(everywhere) == 1 == number_of(everywhere, "r0001"), "r0002 runs still"
    assert number_of(by_host(gpu01=(steps, 2), gpu02=(steps, 1)), "r0002") == 2, "forward only when it is named"


def test_a_cut_deploy_of_an_earlier_release_is_undone() -> None:
    """r0001 was deployed again and came to one host: who has the other's last switch behind it is the newer, and the
    clock of the other, an hour ahead, does not matter."""
    steps: list[Step] = [*live(1), *live(2)]
    history = merge({"gpu01": store([*steps, ("switched", 1, {"previous": 2})], 1),
                     "gpu02": store(steps, 2, clock=3600)})
    assert history.to_leave is not None and history.to_leave.number == 1 and not history.by_hand
    assert number_of(history) == 2


def test_a_start_that_failed_and_came_back_on_one_host_alone_is_undone() -> None:
    cut: list[Step] = [*live(1), *live(2), ("made", 3), ("switched", 3, {"previous": 2}), ("bad", 3)]
    history = by_host(gpu01=([*cut, ("switched", 2, {"previous": 3, "undo": True})], 2), gpu02=(cut, 3))
    assert number_of(history) == 2
    back: list[Step] = [*cut, ("switched", 2, {"previous": 3, "undo": True})]
    by_hand = by_host(gpu01=(back, 2), gpu02=(back, 3))
    assert number_of(by_hand) == 2, "r0002 is not in use on all of them: there is something to do"


def test_without_an_earlier_one_the_release_that_all_had_is_offered() -> None:
    steps: list[Step] = [("made", 1), ("switched", 1), ("bad", 1), *live(2)]
    with pytest.raises(FindingError) as caught:
        rollback_target(by_host(gpu01=(steps, 2), gpu02=(steps, 1)), HOSTS)
    assert caught.value.next == "invoke rollback --to r0002 puts all of them on it"
    assert caught.value.found == "r0001 bad"


@pytest.mark.parametrize(("steps", "label"), [([("bad", 2)], "r0002"), ([("left", 2)], "r0002")])
def test_one_known_to_be_bad_only_when_told(steps: list[Step], label: str) -> None:
    history = all_of([*live(1), *live(2), *steps, *live(3)], 3)
    with pytest.raises(FindingError, match=f"{label} is") as caught:
        rollback_target(history, HOSTS, "2")
    assert "--even-if-bad" in str(caught.value.next)
    assert number_of(history, "2", even_if_bad=True) == 2


def test_the_next_that_may_be_gone_to_comes_after_the_best() -> None:
    history = all_of([*live(1), *live(2), *live(3), *live(4), ("bad", 3)], 4)
    assert [e.number for e in candidates(history, HOSTS)] == [2, 1]


def test_the_last_start_is_that_of_the_newest_run() -> None:
    history = all_of([*live(1), ("started", 1, {"seconds": 3.0})], 1)
    assert history.entries[0].seconds == 3.0


def reasons(history: History, keep: int, running: Mapping[int, list[str]] | None = None) -> dict[str, str]:
    found = staying(history, HOSTS, keep, {release(n).digest: hosts for n, hosts in (running or {}).items()})
    return {e.label: found[e.digest] for e in history.entries if e.digest in found}


def test_gc_leaves_what_is_in_use_runs_is_pinned_or_is_the_last_good() -> None:
    steps: list[Step] = [*live(1), *live(2), *live(3), ("pinned", 1, {"reason": "audit"}), *live(4), ("bad", 4),
                         *live(5), ("bad", 5)]
    assert reasons(all_of(steps, 5), 0) == {"r0001": "pinned (audit)", "r0003": "the last good one", "r0005": "in use"}
    assert set(reasons(all_of(steps, 5), 0, {2: ["gpu02"]})) == {"r0001", "r0002", "r0003", "r0005"}
    assert reasons(all_of(steps, 5), 2)["r0004"] == "among the newest 2"
    unpinned = [*steps, ("unpinned", 1)]
    assert "r0001" not in reasons(all_of(unpinned, 5), 0)


def test_gc_leaves_both_ends_of_a_rollback_that_is_not_finished() -> None:
    history = all_of([*live(1), *live(2), *live(3), ("switched", 2, {"previous": 3, "leaving": 3}), ("left", 3)], 2)
    assert reasons(history, 0) == {"r0001": "where a rollback goes", "r0002": "in use",
                                   "r0003": "a rollback is not finished"}


def test_a_removed_one_is_told_as_removed() -> None:
    history = merge({host: store([*live(1), ("pruned", 1), *live(2)], 2, gone=(1,)) for host in HOSTS})
    with pytest.raises(InputError, match=r"r0001 was removed by release\.gc") as caught:
        history.find("r0001")
    assert "ops@deploy1" in str(caught.value.found)


def test_states_as_a_person_reads_them() -> None:
    history = all_of([*live(1), *live(2), ("left", 2), ("pinned", 1, {"reason": "audit"})], 1)
    assert [state_of(e, HOSTS) for e in history.entries] == ["current, good, pinned (audit)", "rolled back from"]
    assert "not on gpu03" in state_of(history.entries[0], (*HOSTS, "gpu03"))
