"""What an engine should answer to every request of the contract: the lessons of the tiny model, and their proof."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.releases.contract import WORDS
from bringup.serving.contract.check import Served
from bringup.serving.contract.request import CHAT, RESPONSES, Request, Response
from bringup.serving.contract.run import check_contract

NONCE = "kestrel4711"
MODEL = "tiny-glm"
NUMBERS = "one two three four five six seven eight nine ten eleven twelve"


@dataclass(frozen=True)
class Answer:
    """What is said: thinking, content, calls as (name, arguments)."""

    reasoning: str
    content: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def text(self) -> str:
        """In the model's own form, behind `<think>` or, without thinking, behind `</think>`."""
        calls = "".join("<tool_call>" + name + "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
            for key, value in arguments.items()) + "</tool_call>" for name, arguments in self.calls)
        thought = f"{self.reasoning}</think>" if self.reasoning else ""
        return thought + self.content + calls + ("<|observation|>" if self.calls else "<|user|>")


def answer(body: Mapping[str, Any]) -> Answer:
    """The right answer to a chat request of the contract. Raises ValueError for one that is not known."""
    last = body["messages"][-1]
    thinks = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
    text = str(last["content"])
    if last["role"] == "tool":
        found = Answer("I have it.", f"It says: {text}")
    elif text.startswith("Call "):
        found = Answer("I call it.", calls=_calls(text))
    else:
        found = Answer("Easy.", _said(text))
    return found if thinks else Answer("", found.content, found.calls)


def _said(text: str) -> str:
    match = re.fullmatch(r'Reply with (?:the word (\S+)|exactly "(.+)") and nothing else\.', text)
    if match:
        return match[1] or match[2]
    match = re.match(r"Count from 1 to (\d+) in digits", text)
    if match:
        return " ".join(str(number) for number in range(1, min(int(match[1]), 60) + 1))
    if text.startswith("Count from one"):
        return NUMBERS
    if text in ("Say ok.", "Say pong."):
        return text[4:-1]
    raise ValueError(f"the tiny model has not learnt to answer {text!r}")


def _calls(text: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    name = text.split()[1].rstrip(".")
    if match := re.search(r"twice, for the city (\w+) and for the city (\w+)", text):
        return tuple((name, {"city": city}) for city in match.groups())
    if match := re.search(r"for the (city|key) (\w+)", text):
        return ((name, {match[1]: match[2]}),)
    if match := re.search(r"with days (\d+) and unit (\w+)", text):
        return ((name, {"days": int(match[1]), "unit": match[2]}),)
    if match := re.search(r"with address = (.+) and items = (.+)\.$", text):
        return ((name, {"address": json.loads(match[1]), "items": json.loads(match[2])}),)
    if match := re.search(r'with the text "(.+)"\.$', text, re.S):
        return ((name, {"text": match[1]}),)
    if text == f"Call {name}.":
        return ((name, {}),)
    raise ValueError(f"the tiny model has not learnt to answer {text!r}")


@dataclass
class IdealEngine:
    """Answers as an engine should; `asked` are the chat requests that it answered."""

    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def __call__(self, requests: Sequence[Request], at_once: int = 4, /) -> list[Response]:
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Response:
        if request.headers.get("Authorization"):
            return Response(request.id, 401)
        if request.path == RESPONSES:
            return _item_answer(request)
        if request.path != CHAT:
            return Response(request.id, 200, json.dumps({"data": [{"id": MODEL}]}))
        body = request.body
        choice = body.get("tool_choice")
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        if request.raw or (isinstance(choice, Mapping) and choice["function"]["name"] not in offered):
            return Response(request.id, 400, '{"error": {"message": "no"}}')
        if body["model"] != MODEL:
            return Response(request.id, 404, '{"error": {"message": "does not exist"}}')
        self.asked.append(body)
        return _response(request, answer(body), 20 + sum(len(str(item)) for item in _seen(body)))


def _seen(body: Mapping[str, Any]) -> list[Any]:
    """What the template shows of the messages: earlier thinking only where it is kept."""
    kept = (body.get("chat_template_kwargs") or {}).get("clear_thinking") is False
    return [value for message in body["messages"] for key, value in message.items()
            if kept or not key.startswith("reasoning")]


def _response(request: Request, said: Answer, prompt: int) -> Response:
    if request.body.get("stop"):
        said = Answer(said.reasoning, said.content.split(request.body["stop"][0])[0], said.calls)
    cut = request.body.get("max_tokens", 9999) < 16
    calls = [{"index": number, "id": f"call_{number}", "type": "function", "function": {
        "name": name, "arguments": json.dumps(arguments)}} for number, (name, arguments) in enumerate(said.calls)]
    end = "length" if cut else "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}
    common = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
    if not request.stream:
        message = {"role": "assistant", "content": said.content or None, "reasoning": said.reasoning or None,
                   **({"tool_calls": calls} if calls else {})}
        return Response(request.id, 200, json.dumps({**common, "object": "chat.completion", "usage": usage, "choices": [
            {"index": 0, "message": message, "finish_reason": end}]}))
    deltas: list[Mapping[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in _pieces(said.reasoning)]
    deltas += [{"content": piece} for piece in _pieces(said.content)]
    deltas += [{"tool_calls": [call]} for call in calls]
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks.append({"index": 0, "delta": {}, "finish_reason": end})
    events = [json.dumps({**common, "object": "chat.completion.chunk", "choices": [chunk]}) for chunk in chunks]
    events.append(json.dumps({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
    return Response(request.id, 200, events=tuple((0.01 * at, text) for at, text in enumerate([*events, "[DONE]"])))


def _item_answer(request: Request) -> Response:
    """The same answer by /v1/responses: the question stands in `input`."""
    said = answer({"messages": [{"role": "user", "content": request.body["input"]}]})
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [
        {"type": "reasoning_text", "text": said.reasoning}]}]
    output += [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
        {"type": "output_text", "text": said.content, "annotations": []}]}] if said.content else []
    output += [{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name,
                "arguments": json.dumps(arguments), "status": "completed"} for name, arguments in said.calls]
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": MODEL, "status": "completed",
             "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    if not request.stream:
        return Response(request.id, 200, json.dumps(whole))
    pieces = [("reasoning_text", said.reasoning), ("output_text", said.content),
              *(("function_call_arguments", json.dumps(arguments)) for _, arguments in said.calls)]
    events = [{"type": "response.created", "response": whole},
              *({"type": f"response.{kind}.delta", "delta": text} for kind, text in pieces if text),
              {"type": "response.completed", "response": whole}]
    return Response(request.id, 200, events=tuple(
        (0.01 * at, json.dumps({**event, "sequence_number": at})) for at, event in enumerate(events)))


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def findings(engine: IdealEngine) -> list[Any]:
    """The contract against an ideal engine."""
    served = Served(MODEL, nonce=NONCE, has_key=True)
    return check_contract(served, engine, subject="r1")


def lessons() -> dict[str, Any]:
    """What the tiny model is trained on: the requests of the contract as they stand, with the right answers."""
    engine = IdealEngine()
    findings(engine)
    plain = [{"messages": [{"role": "user", "content": text}]} for text in ("Say ok.", "Say pong.")]
    dialogues: dict[str, dict[str, Any]] = {}
    for body in [*plain, *engine.asked]:
        one = {"messages": _as_template_sees(body["messages"]), "tools": body.get("tools"),
               "options": body.get("chat_template_kwargs") or {}, "answer": answer(body).text()}
        text = re.sub(rf"{NONCE}(?:x\d+)?", "@nonce@", json.dumps(one, ensure_ascii=False))
        dialogues[text] = json.loads(text)
    words = [text.replace("@nonce@", "") for one in dialogues.values()
             for text in (*(str(message.get("content")) for message in one["messages"]), one["answer"])]
    return {"words": [*words, *WORDS], "nonces": list(WORDS), "dialogues": list(dialogues.values())}


def _as_template_sees(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as mappings, as engines hand them to the template."""
    out = []
    for message in messages:
        one = dict(message)
        if one.get("tool_calls"):
            one["tool_calls"] = [{**call, "function": {**call["function"], "arguments": json.loads(
                call["function"]["arguments"])}} for call in one["tool_calls"]]
        out.append(one)
    return out
