"""Which launch flag or template most likely is the cause of a failed check: told by the failure and the command."""

from __future__ import annotations

from bringup.base.errors import InputError
from bringup.serving.contract.check import Served
from bringup.serving.versions import flag_value, parser_row

TOOL, THINK, AUTO, FORM = ("--tool-call-parser", "--reasoning-parser", "--enable-auto-tool-choice",
                           "--chat-template-content-format")


def cause_of(check: str, problem: str, served: Served, mend: str | None = None) -> tuple[str, str | None]:
    """(why, what mends it) for a check's failure. `problem` is what the judge said."""
    if check.startswith("load.") and "HTTP 401" not in problem and "Connection refused" not in problem:
        return _others(check, problem, mend)
    if any(word in problem for word in ("Connection refused", "no answer within", "Connection reset",
                                        "EngineCore", "HTTP 5")):
        if check == "request.bad":
            return "the server passes what it should refuse on to the engine", "a newer engine, or a gateway in front"
        return "the engine, not the contract: it does not answer", "invoke status, then invoke logs"
    if "does not exist" in problem or "HTTP 404" in problem or check == "models.served":
        return (f"the process serves another name: --served-model-name {_flag(served, '--served-model-name')}",
                "deployment.served_name, then provision")
    if 'requires --enable-auto-tool-choice' in problem:
        return f"{AUTO} and {TOOL} are missing", _tool(served)
    if "HTTP 401" in problem or check == "key.refused":
        return "the engine and this deployment do not have the same key", "the key reaches the engine as VLLM_API_KEY"
    area = check.split(".")[0]
    if area == "responses" and "tool call" not in problem and "</think>" not in problem:
        return ("the engine's /v1/responses, which is younger than its chat: this breaks there alone when the checks "
                "of chat pass", "a newer engine; until then clients on /v1/chat/completions")
    if area == "tools" or "tool call" in problem or "calls" in problem:
        return _tools(check, problem, served, mend)
    if area == "thinking" or any(word in problem for word in ("reasoning", "</think>", "in its thinking")):
        return _thinking(check, problem, served)
    return _others(check, problem, mend)


def _tools(check: str, problem: str, served: Served, mend: str | None) -> tuple[str, str | None]:
    parser = flag_value(list(served.argv), TOOL) if served.argv else None
    wanted = _parser(served, "tool")
    if any(mark in problem for mark in ("<tool_call>", "<arg_key>", "came as text")):
        if served.argv and parser is None:
            return f"{TOOL} is missing: the call stays text", _tool(served)
        if parser is not None and parser not in wanted[1]:
            return f"{TOOL} {parser} does not read what this model writes", _tool(served)
        return f"{TOOL} does not read what this model writes", _tool(served)
    if "0 tool calls came" in problem or "no tool call came" in problem:
        if parser is not None and parser not in wanted[1]:
            return f"{TOOL} {parser} does not read what this model writes", _tool(served)
        if check == "tools.no-arguments":
            return "the parser loses calls without arguments in a stream", mend
        return f"{TOOL} or {AUTO} is missing, or the template does not show the tools to the model", _tool(served)
    if check == "tools.result":
        return f"the template gets the tool's text as a list: {FORM} {_flag(served, FORM)}", f"{FORM}=string"
    if check == "tools.no-arguments":
        return "the parser loses calls without arguments in a stream", mend
    if check == "tools.unknown":
        return "the server does not compare tool_choice with the tools", "a newer engine"
    if check == "tools.repeat" or "has no id" in problem or "not a valid string" in problem:
        return "the parser breaks now and then on drafted tokens", "num_speculative_tokens 1, or no speculative config"
    if "no JSON" in problem:
        return ("the parser gives broken or cut arguments, most often with drafted tokens",
                f"{TOOL} {wanted[0]}; num_speculative_tokens 1")
    if check == "tools.parallel":
        return "the parser does not keep calls of one answer apart", _tool(served)
    if check in ("tools.nested", "tools.typed") or "is not of type" in problem:
        return f"{TOOL} gives arguments as text instead of the schema's types", _tool(served)
    if check == "tools.unicode":
        return "the parser or its tokenizer cuts signs of several bytes", _tool(served)
    if "finish_reason" in problem:
        return "the server does not tell that it stopped for a tool", "a newer engine"
    return f"{TOOL} reads the call wrongly, or the template shows the tools wrongly", _tool(served)


def _thinking(check: str, problem: str, served: Served) -> tuple[str, str | None]:
    parser = flag_value(list(served.argv), THINK) if served.argv else None
    wanted = _parser(served, "reasoning")
    mend = f"{THINK} {wanted[0]}" + (f"   ({wanted[2]})" if wanted[2] else "")
    if parser == wanted[0]:
        mend = f"{THINK} {parser} is given already: another version of {served.engine}"
    if served.argv and parser is None:
        return f"{THINK} is missing: the thinking stays in the content", mend
    if parser is not None and parser not in wanted[1]:
        return f"{THINK} {parser} is not this model's: it takes an answer without thinking for thinking", mend
    if check == "thinking.preserved":
        return ("the template drops the earlier thinking, or the server drops the field `reasoning` of the request",
                "the model's own chat_template.jinja (no --chat-template), a newer engine")
    if check == "thinking.off" and "though thinking is off" in problem:
        return "the template ignores enable_thinking", "the model's own chat_template.jinja (no --chat-template)"
    if check == "finish.length":
        return "the parser takes thinking that was cut for content", mend
    if check == "thinking.turns":
        return "the parser loses the end of the thinking behind earlier tool calls", mend
    return f"{THINK} does not part thinking from content", mend


def _others(check: str, problem: str, mend: str | None) -> tuple[str, str | None]:
    if check == "load.limit":
        return ("the server refuses or mixes requests at its limit",
                "--max-num-seqs (SGLang: --max-running-requests) as high as clients need; no limit in front")
    if check == "load.cancel":
        return "the server does not see that its client left (a proxy in between keeps the connection)", \
            "no buffering proxy in front; a newer engine"
    if check.startswith("stream.") or "stream" in problem:
        return "the server's streaming, or a proxy in front that collects what it should pass on", \
            "no buffering proxy in front; a newer engine"
    if check == "models.unknown":
        return "the server answers for every name, so that a wrong one is not noticed", "a newer engine"
    if check == "answer.unicode":
        return "signs of several bytes are cut between tokens", "the model's own tokenizer files; a newer engine"
    if check.startswith("finish."):
        return "the server does not pass the request's limits on", "a newer engine"
    return "the server's answer is not of OpenAI's form", mend or "a newer engine"


def _parser(served: Served, kind: str) -> tuple[str, tuple[str, ...], str]:
    """(name, names that would do, why) of the parser that this engine's version takes for the model."""
    try:
        row = parser_row(served.engine, kind, served.version or "0.24.0")
    except InputError:
        return "glm47", ("glm45", "glm47"), ""
    return row.use, row.known, row.why


def _tool(served: Served) -> str:
    use = _parser(served, "tool")[0]
    auto = served.engine.startswith("vllm")
    if flag_value(list(served.argv), TOOL) == use and (not auto or AUTO in served.argv):
        return f"{TOOL} {use} is given already: another version of {served.engine} ({served.version or 'unknown'} runs)"
    return f"{TOOL} {use}" + (f" {AUTO}" if auto else "")


def _flag(served: Served, flag: str) -> str:
    value = flag_value(list(served.argv), flag) if served.argv else None
    return value or "is not given"
