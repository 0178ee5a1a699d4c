"""A request to an endpoint and what came back, as the host's module does them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class Request:
    """One HTTP request. `body` None is a GET; `timeout` is seconds of silence.

    `raw` keeps the body as it is: it is wrong on purpose. `close_after` hangs up after so many lines of a stream.
    `wait` is how many seconds pass before it is sent.
    """

    id: str
    path: str
    body: Any = None
    stream: bool = False
    timeout: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bool = False
    close_after: int | None = None
    wait: float = 0.0

    def wire(self) -> dict[str, Any]:
        """As the host's module takes it."""
        return {"id": self.id, "path": self.path, "body": self.body, "stream": self.stream, "timeout": self.timeout,
                "headers": dict(self.headers), "close_after": self.close_after, "wait": self.wait}


@dataclass(frozen=True)
class Response:
    """What came back. `events` are (second, text) of a stream, counted from the sending; status 0 with `error` is no
    answer; `seconds` is the whole of it."""

    id: str
    status: int
    body: str = ""
    events: tuple[tuple[float, str], ...] = ()
    error: str | None = None
    seconds: float = 0.0

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Response:
        """From what the host's module returned."""
        return cls(id=str(data.get("id")), status=int(data.get("status") or 0), body=str(data.get("body") or ""),
                   events=tuple((float(at), str(text)) for at, text in data.get("events") or ()),
                   error=data.get("error"), seconds=float(data.get("seconds") or 0.0))

    def problem(self) -> str | None:
        """Why this is no good answer, in a line; None for status 200."""
        if self.error:
            return self.error
        if self.status != 200:
            return f"HTTP {self.status}: {error_text(self.body)}"
        return None


def error_text(body: str) -> str:
    """The message in an error's body, else the start of the body."""
    try:
        data = json.loads(body)
    except ValueError:
        return body[:200]
    if isinstance(data, Mapping):
        error = data.get("error", data.get("message", data.get("detail")))
        if isinstance(error, Mapping):
            error = error.get("message")
        if error:
            return str(error)[:200]
    return body[:200]
