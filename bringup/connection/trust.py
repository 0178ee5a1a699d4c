"""Unknown host keys of all hosts, shown together and asked about once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from bringup.base.errors import BringupError, UnreachableError
from bringup.connection import hostkeys
from bringup.connection.gate import Gate
from bringup.connection.hostkeys import UnknownHostKey, UnknownKey
from bringup.connection.messages import Target

Ask = Callable[[Sequence[UnknownKey]], bool]
"""Shows the keys with their fingerprints and asks whether to trust them."""


def establish(targets: Sequence[Target], ask: Ask | None, gate: Gate | None = None) -> dict[str, BringupError]:
    """Have every host's key known before the run begins; the errors of hosts that stay unknown or do not answer.

    Hosts whose key is known, pinned, signed by an authority or accepted when new are not contacted. The keys of the
    others are collected side by side and put to `ask` in one question; when it says yes they are written in one go.
    A bastion's key has to be known before the hosts behind it can be seen: they make a second question.
    Without `ask` (no terminal) unknown keys are errors, and nothing is written.
    """
    gate = gate or Gate()
    errors: dict[str, BringupError] = {}
    left = [target for target in targets if target.connection == "ssh"]
    for _ in range(9):  # bastions in a row, and the host
        found, errors_now = collect_keys(left, gate)
        errors.update(errors_now)
        if not found:
            return errors
        keys = list({(key.file, key.name, key.blob): key for key in found.values()}.values())
        if ask is None or not ask(keys):
            for host, key in found.items():
                errors[host] = refusal(key, asked=ask is not None)
            return errors
        hostkeys.add(keys)
        left = [target for target in left if target.host in found]
    return errors


def refusal(key: UnknownKey, asked: bool) -> BringupError:
    """The error of a host whose key nobody confirmed."""
    what = "the host key was not confirmed" if asked else "the host key is not known, and there is no terminal to ask"
    return UnreachableError(
        what, host=key.host, expected=f"an entry for {key.name} in {key.file}",
        found=f"{key.key_type} {key.fingerprint}",
        next=f"compare the fingerprint and pin it: bringup_host_key: {key.fingerprint}; "
             "or run this at a terminal and confirm it")


def collect_keys(targets: Sequence[Target], gate: Gate) -> tuple[dict[str, UnknownKey], dict[str, BringupError]]:
    """Keys that nobody knows yet, by host, and the errors met on the way. No login is tried."""
    from bringup.connection.dial import host_key
    from bringup.connection.way import server_of

    found: dict[str, UnknownKey] = {}
    errors: dict[str, BringupError] = {}

    def look(target: Target) -> None:
        try:
            server = server_of(target)
            way = server
            certain = way.policy.certain
            while way.via is not None:
                way = way.via
                certain = certain and way.policy.certain
            if not certain:
                host_key(server, gate)
        except UnknownHostKey as error:
            found[target.host] = error.key
        except BringupError as error:
            errors[target.host] = error

    threads = [threading.Thread(target=look, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order = [target.host for target in targets]
    return {host: found[host] for host in order if host in found}, errors
