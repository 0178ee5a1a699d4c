"""Ask a replica's head whether it serves: /health, /v1/models, a generated token, in one round trip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan import POOL_ROLES


@dataclass(frozen=True)
class Probe:
    """What the head answered. `serves`: healthy, the right model, a token generated (`pool`: of an engine that only a
    router may ask no token is wanted)."""

    health: int | None
    models: tuple[str, ...]
    token: bool
    error: str | None
    phase: str
    seconds: float
    wanted: str
    pool: bool = False

    @property
    def serves(self) -> bool:
        return self.health == 200 and self.wanted in self.models and (self.token or self.pool)

    @property
    def other_key(self) -> bool:
        """True when the engine does not take the key of this deployment: it was started with another one."""
        return self.health == 200 and bool(re.search(r"answer(?:s|ed with) 40[13]\b", self.error or ""))

    @property
    def wrong(self) -> str | None:
        """What no waiting mends: another model under this port, or a first request that fails."""
        if self.health != 200:
            return None
        if self.models and self.wanted not in self.models:
            return f"the head serves {', '.join(self.models)}, not {self.wanted}"
        if self.phase == "token" and not self.token and self.error and " 503" not in str(self.error):
            return "/health answers 200 and the first request fails"
        return None

    @property
    def told(self) -> str:
        """In a few words, for status."""
        if self.serves and self.pool:
            return "ready, asked by the router"
        if self.serves:
            return f"a token in {self.seconds:.2f} s"
        if self.health is None:
            return f"no answer from the head ({self.error})"
        told = ": ".join(str(part) for part in (self.wrong, self.error) if part)
        told = told or f"/health answers {self.health}, no token was asked for"
        return told if len(told) <= 90 else told[:87] + "..."


def probe(fleet: Fleet, host: str, document: Mapping[str, Any], key: str | None, timeout: float = 10.0, *,
          token: bool = True) -> Probe:
    """Ask the process of a launch document on its own host. Without `token` nothing is generated: a request to an
    engine that lost a rank ends it."""
    address, port = where(document)
    pool = document.get("role") in POOL_ROLES
    token = token and not pool
    wanted = str(document.get("served_name") or "")
    result = calls.call_all(fleet, "engine_probe", {host: {
        "address": address, "port": port, "model": wanted, "key": key, "timeout": timeout,
        "token": token}}, changes=False,
        timeout=timeout * 3 + 10)[host]
    if result.bad:
        return Probe(None, (), False, calls.first_line(result), "host", result.seconds, wanted, pool)
    data = result.data
    return Probe(data.get("health"), tuple(data.get("models") or ()), bool(data.get("token")), data.get("error"),
                 str(data.get("phase") or ""), float(data.get("seconds") or 0.0), wanted, pool)


def where(document: Mapping[str, Any]) -> tuple[str, int]:
    """Address and port to ask: those of the endpoint, as clients use them."""
    parts = urlsplit(str(document.get("endpoint") or ""))
    bound = list(document.get("addresses") or ())
    address = parts.hostname or (bound[0] if bound else "127.0.0.1")
    return address, int(parts.port or document.get("http_port") or 0)
