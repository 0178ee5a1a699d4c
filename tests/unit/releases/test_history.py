"""States of releases and where a rollback lands."""

from __future__ import annotations

from typing import Any

import pytest

from bringup.base.errors import FindingError, InputError
from bringup.releases.document import Release
from bringup.releases.history import HostStore, merge
from bringup.releases.targets import rollback_target

HOSTS = ("gpu01", "gpu02")


def release(number: int) -> Release:
    return Release({"served_name": "glm", "world_size": 2, "replicas": [], "n": number}, {})


def store(events: list[tuple[str, int]], current: int | None, *, holds: tuple[int, ...] | None = None) -> HostStore:
    numbers = sorted({n for _, n in events})
    history: list[dict[str, Any]] = [
        {"event": event, "digest": release(n).digest, "at": float(at), "number": n if event == "made" else None}
        for at, (event, n) in enumerate(events, 1)]
    kept = holds if holds is not None else tuple(numbers)
    return HostStore(release(current).digest if current else None, {release(n).digest: release(n) for n in kept},
                     {}, {}, history)


def live(n: int) -> list[tuple[str, int]]:
    return [("made", n), ("switched", n), ("started", n), ("good", n)]


CASE = [*live(1), *live(2), ("left", 2), ("switched", 1), ("made", 3), ("bad", 3), *live(4)]


def both(events: list[tuple[str, int]], current: int) -> Any:
    return merge({host: store(events, current) for host in HOSTS})


def test_goes_to_the_newest_that_was_live_and_not_left() -> None:
    history = both(CASE, 4)
    assert [e.state for e in history.entries] == ["good", "left", "bad", "good"]
    assert rollback_target(history, HOSTS).entry.number == 1  # type: ignore[union-attr]


def test_after_a_failure_before_the_switch_nothing_changes() -> None:
    target = rollback_target(both([*CASE, ("made", 5), ("bad", 5)], 4), HOSTS)
    assert target.entry is None
    assert "r0005 was never switched to: r0004 is in use" in target.reason


def test_previous_is_by_use_not_by_number() -> None:
    history = both([*live(1), *live(2), ("switched", 1), ("good", 1)], 1)
    assert rollback_target(history, HOSTS).entry.number == 2  # type: ignore[union-attr]


def test_one_that_was_good_on_some_hosts_only_is_passed_over() -> None:
    history = merge({"gpu01": store([*live(1), *live(2), *live(3)], 3),
                     "gpu02": store([*live(1), ("made", 2), ("switched", 2), *live(3)], 3)})
    assert rollback_target(history, HOSTS).entry.number == 1  # type: ignore[union-attr]


def test_a_bad_one_made_good_again_counts_as_good() -> None:
    history = both([*live(1), ("bad", 1), ("switched", 1), ("good", 1), *live(2)], 2)
    assert rollback_target(history, HOSTS).entry.number == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("to", "words"), [("r0003", "known to be bad"), ("2", "rolled back from")])
def test_a_named_bad_one_is_refused(to: str, words: str) -> None:
    with pytest.raises(FindingError, match=words):
        rollback_target(both(CASE, 4), HOSTS, to)


def test_an_unknown_name_is_input_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        rollback_target(both(CASE, 4), HOSTS, "r0009")
    assert "r0004" in str(caught.value.expected)
    # release.diff says the same, and has no --to
    assert caught.value.next == "nearest: r0004"


def test_a_digest_names_it_too() -> None:
    assert rollback_target(both(CASE, 4), HOSTS, release(1).digest[:8]).entry.number == 1  # type: ignore[union-attr]


def test_a_mix_is_seen_and_goes_back_to_the_last_good_one() -> None:
    history = merge({"gpu01": store([*live(1), ("made", 2), ("switched", 2)], 2),
                     "gpu02": store([*live(1), ("made", 2)], 1)})
    assert history.mixed
    assert rollback_target(history, HOSTS).entry.number == 1  # type: ignore[union-attr]


def test_nothing_to_go_back_to_says_what_there_is() -> None:
    with pytest.raises(FindingError) as caught:
        rollback_target(both([*live(1), ("bad", 1), *live(2)], 2), HOSTS)
    assert caught.value.found == "r0001 bad"


def test_named_one_that_a_host_lacks_is_refused() -> None:
    history = merge({"gpu01": store([*live(1), *live(2)], 2), "gpu02": store([*live(1), *live(2)], 2, holds=(2,))})
    with pytest.raises(FindingError, match="not on gpu02"):
        rollback_target(history, HOSTS, "r0001")


def test_a_release_is_bad_where_its_contract_failed_last_and_a_rollback_passes_it_over() -> None:
    history = both([*live(1), *live(2), ("bad", 2)], 2)
    entry = history.in_use
    assert entry is not None and (entry.state, entry.bad_on) == ("bad", HOSTS)
    assert rollback_target(history, HOSTS).entry.number == 1  # type: ignore[union-attr]
    mended = both([*live(1), *live(2), ("bad", 2), ("good", 2)], 2).in_use
    assert mended is not None and (mended.state, mended.bad_on) == ("good", ())
