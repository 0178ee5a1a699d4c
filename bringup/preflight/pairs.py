"""Who is measured with whom, and whose fault a slow pair is. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

ROUNDS = 7
"""Partners of each host: with so many a bad host is told from a bad pair, and a large fleet still takes a minute."""

Pair = tuple[str, str]


def rounds(hosts: Sequence[str], most: int = ROUNDS) -> list[list[Pair]]:
    """Rounds in each of which a host is in one pair at most, so that no link is measured twice at once.

    Every pair once where there are few hosts (the circle method), `most` partners each where there are many. Each
    round comes twice, the second time the other way round.
    """
    circle: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    out: list[list[Pair]] = []
    for _ in range(min(len(circle) - 1, most)):
        half = len(circle) // 2
        pairs = [(one, other) for one, other in zip(circle[:half], reversed(circle[half:]), strict=True)
                 if one is not None and other is not None]
        out += [pairs, [(other, one) for one, other in pairs]]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [one for one in out if one]


def again(slow: Collection[Pair], good: Collection[Pair], hosts: Sequence[str]) -> list[list[Pair]]:
    """Rounds that measure slow pairs once more, and each of their hosts with a partner that is in no slow pair."""
    suspects = sorted({host for pair in slow for host in pair}, key=list(hosts).index)
    sound = [host for host in hosts if host not in suspects]
    wanted = list(slow)
    known = {frozenset(pair) for pair in (*slow, *good)}
    for number, host in enumerate(suspects):
        partner = sound[number % len(sound)] if sound else None
        # one whose way to a sound partner was measured already needs no other
        if partner and not any(frozenset((host, other)) in known for other in sound):
            wanted += [(host, partner), (partner, host)]
    out: list[list[Pair]] = []
    for pair in wanted:
        for one in out:
            if not {host for other in one for host in other} & set(pair):
                one.append(pair)
                break
        else:
            out.append([pair])
    return out


def sound(values: Collection[float], *, less: bool = False) -> float | None:
    """What a sound way shows, where there are enough to say: the best but a sixth. `less` where less is better.

    No median: of three hosts one bad one spoils two ways in three.
    """
    return sorted(values, reverse=not less)[len(values) // 6] if len(values) >= 4 else None


def blame(bad: Collection[Pair], measured: Collection[Pair]) -> tuple[list[str], list[Pair]]:
    """Bad hosts, and the bad pairs that no bad host explains.

    A host is bad when more than half of its ways (two partners at least) are bad, the worst host first taken out.
    With two hosts nobody can tell: the pair is named.
    """
    left, ways = list(bad), list(measured)
    hosts: list[str] = []
    while left:
        shares: dict[str, float] = {}
        for host in {host for pair in left for host in pair}:
            mine = [pair for pair in ways if host in pair]
            if len({other for pair in mine for other in pair}) >= 3:
                shares[host] = sum(1 for pair in mine if pair in left) / len(mine)
        worst = max(sorted(shares), key=lambda host: shares[host], default=None)
        if worst is None or shares[worst] <= 0.5:
            break
        rivals = [host for host, share in shares.items() if share == shares[worst]]
        if len(rivals) > 1 and shares[worst] < 1:
            break
        hosts.append(worst)
        left = [pair for pair in left if worst not in pair]
        ways = [pair for pair in ways if worst not in pair]
    return sorted(hosts), left


def matrix(hosts: Sequence[str], cells: Mapping[Pair, str]) -> list[tuple[str, ...]]:
    """A table with a line for each host that measured and a column for each that was reached."""
    head = ("from \\ to", *hosts)
    return [head, *((one, *(cells.get((one, other), "." if one == other else "-") for other in hosts))
                    for one in hosts)]
