"""OpenAI's own client on both ends of an exchange: it makes the request, it reads the answer; the way between is ours.

The endpoint is asked from its own host, so the client never opens a connection here: its transport first keeps what the
client would send, later hands it the bytes that came. What it takes is what a user of the client gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import httpx2
import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import ValidationError

from bringup.serving.contract.request import CHAT, RESPONSES, Request

NOWHERE = "http://endpoint.invalid/v1"
"""The client's base URL; nothing is ever sent there."""
_OURS = ("chat_template_kwargs",)
"""What is no parameter of the client and goes as `extra_body`."""
_LEFT_OUT = ("authorization", "host", "content-length", "connection", "accept-encoding")


class _Kept(httpx2.BaseTransport):
    """Keeps the request; answers with an end."""

    def __init__(self) -> None:
        self.request: httpx2.Request | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.request = request
        return httpx2.Response(204, request=request)


class _Given(httpx2.BaseTransport):
    """Gives back what came from the endpoint."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content = content
        self.kind = kind

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=self.content, headers={"content-type": self.kind}, request=request)


def _client(transport: httpx2.BaseTransport, *, strict: bool = True) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url=NOWHERE, max_retries=0, _strict_response_validation=strict,
                         http_client=httpx2.Client(transport=transport, trust_env=False))


def as_client_sends(request: Request) -> Request:
    """The same request with the body and headers that OpenAI's client makes of it. Other paths than those of chat and
    responses, and bodies that are wrong on purpose, stay as they are."""
    body = request.body
    if request.path not in (CHAT, RESPONSES) or not isinstance(body, Mapping) or request.raw:
        return request
    known = {key: value for key, value in body.items() if key not in _OURS}
    extra = {key: value for key, value in body.items() if key in _OURS}
    transport = _Kept()
    with _client(transport) as client:
        if request.path == CHAT:
            client.chat.completions.with_raw_response.create(**known, extra_body=extra or None)
        else:
            client.responses.with_raw_response.create(**known, extra_body=extra or None)
    sent = transport.request
    assert sent is not None
    headers = {name: value for name, value in sent.headers.items() if name.lower() not in _LEFT_OUT}
    return replace(request, body=json.loads(sent.content), headers={**headers, **request.headers})


def read_whole(body: str) -> ChatCompletion:
    """A whole answer as the client gives it. Raises ValueError with the first thing that is not of its form."""
    json.loads(body)
    with _client(_Given(body.encode("utf-8"), "application/json")) as client:
        try:
            return client.chat.completions.create(model="any", messages=[])
        except openai.OpenAIError as error:
            raise ValueError(_first(error, "the answer")) from None


def read_response(body: str) -> Response:
    """A whole answer of /v1/responses as the client gives it. Raises ValueError.

    Only the details of usage are not taken strictly: OpenAI's types ask for counts there that older engines lack.
    """
    json.loads(body)
    given = _Given(body.encode("utf-8"), "application/json")
    try:
        with _client(given) as client:
            return client.responses.create(model="any", input="")
    except openai.OpenAIError as error:
        cause = error.__cause__ or error.__context__
        if not isinstance(cause, ValidationError) or not all("usage" in one["loc"] for one in cause.errors()):
            raise ValueError(_first(error, "the answer")) from None
    with _client(given, strict=False) as client:
        return client.responses.create(model="any", input="")


def read_response_events(lines: Sequence[str]) -> list[ResponseStreamEvent]:
    """The events of a stream of /v1/responses as the client gives them, from its data lines. Raises ValueError.

    Kinds that the client does not know are passed on, as it does for its users; who reads them looks at what matters.
    """
    with _client(_Given(_as_stream(lines), "text/event-stream"), strict=False) as client:
        try:
            return list(client.responses.create(model="any", input="", stream=True))
        except openai.OpenAIError as error:
            raise ValueError(_first(error, "an event")) from None


def _as_stream(lines: Sequence[str]) -> bytes:
    return "".join(f"data: {line}\n\n" for line in lines).encode("utf-8")


def read_stream(lines: Sequence[str]) -> list[ChatCompletionChunk]:
    """The chunks of a stream as the client gives them, from its data lines. Raises ValueError."""
    with _client(_Given(_as_stream(lines), "text/event-stream")) as client:
        try:
            return list(_chunks(client))
        except openai.OpenAIError as error:
            raise ValueError(_first(error, "a chunk")) from None


def _chunks(client: openai.OpenAI) -> Iterator[ChatCompletionChunk]:
    with client.chat.completions.create(model="any", messages=[], stream=True) as stream:
        yield from stream


def _first(error: openai.OpenAIError, what: str) -> str:
    """The first thing that the client's types refuse, in a line."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        first = cause.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or what
        return f"OpenAI's client refuses {what}: {place}: {first['msg']}, found {str(first.get('input'))[:60]!r}"
    text = str(getattr(error, "message", "") or error)
    return f"OpenAI's client refuses {what}: {text[:200]}"


@lru_cache(maxsize=1)
def client_version() -> str:
    """`openai 3.57.0`, for the report."""
    return f"openai {openai.__version__}"
