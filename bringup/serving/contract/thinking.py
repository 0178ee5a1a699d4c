"""Checks of thinking: on, off, kept over turns, and never in the content."""

from __future__ import annotations

from typing import Any

from bringup.serving.contract.check import (
    GOOD,
    Answers,
    Check,
    Judgement,
    Round,
    Served,
    first,
    function,
    said,
    user,
    word,
)
from bringup.serving.contract.messages import read_message
from bringup.serving.contract.request import Request

LOOKUP = function("lookup", "Look a key up", {"key": {"type": "string"}})
TURNS = 4
"""Reports of thinking in the content begin behind the third turn with tools."""


def _on(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["on"])
    if not message.reasoning:
        return Judgement("the answer has no reasoning", "thinking in `reasoning` or `reasoning_content`")
    if not message.content:
        return Judgement("the whole answer is in the reasoning, the content is empty")
    return said(served, message)


def _off(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["off"])
    if not message.content and message.reasoning:
        return Judgement("with thinking off the whole answer is in the reasoning, the content is empty")
    if message.reasoning:
        return Judgement(f"the answer has reasoning though thinking is off: {message.reasoning[:80]!r}")
    if not message.content:
        return Judgement("the content is empty with thinking off")
    return said(served, message)


def _history(served: Served) -> list[Request]:
    thought = " ".join(f"step {number} of a long thought" for number in range(12))
    history = [user("Think of a number."),
               {"role": "assistant", "content": "I have one.", "reasoning": thought, "reasoning_content": thought},
               *word(served)]
    return [served.chat(name, history, chat_template_kwargs={"enable_thinking": True, "clear_thinking": clear})
            for name, clear in (("kept", False), ("cleared", True))]


def _preserved(served: Served, answers: Answers) -> Judgement:
    kept, cleared = read_message(answers["kept"]), read_message(answers["cleared"])
    first_, second = kept.usage.get("prompt_tokens", 0), cleared.usage.get("prompt_tokens", 0)
    if first_ <= second:
        return Judgement(f"the earlier thinking does not reach the model: {first_} prompt tokens with clear_thinking "
                         f"false, {second} with true", "more tokens when it is kept")
    return said(served, kept)


def _turns(served: Served) -> list[Request]:
    history: list[dict[str, Any]] = []
    for turn in range(TURNS):
        call = {"id": f"call_{turn}", "type": "function",
                "function": {"name": "lookup", "arguments": f'{{"key": "k{turn}"}}'}}
        history += [user(f"Call lookup for the key k{turn}."),
                    {"role": "assistant", "content": None, "reasoning": f"I look k{turn} up.", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": f"value {turn}"},
                    {"role": "assistant", "content": f"It is value {turn}.", "reasoning": "That is it."}]
    return [served.chat("turn", [*history, *word(served)], tools=[LOOKUP],
                        chat_template_kwargs={"enable_thinking": True, "clear_thinking": False})]


def _judge_turns(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["turn"])
    if not message.reasoning:
        return Judgement(f"no reasoning in turn {TURNS + 1}, content {message.content[:80]!r}", "thinking of its own")
    return said(served, message) if not message.calls else GOOD


THINKING: tuple[Check, ...] = (
    Check("thinking.on", "thinking on", (first(lambda served: [
        served.chat("on", word(served), chat_template_kwargs={"enable_thinking": True})]),), _on, ("reasoning",)),
    Check("thinking.off", "thinking off", (first(lambda served: [
        served.chat("off", word(served), chat_template_kwargs={"enable_thinking": False})]),), _off, ("reasoning",)),
    Check("thinking.preserved", "thinking preserved", (first(_history),), _preserved, ("reasoning",)),
    Check("thinking.turns", f"thinking after {TURNS} turns with tools", (Round(lambda served, _: _turns(served)),),
          _judge_turns, ("reasoning", "tools")),
)
