"""Ask an engine on this host whether it serves: health, models, a generated token. Python 3.6; changes nothing.

One call, so that a person's question costs one round trip. No proxy of the environment is used.
"""

import http.client
import json
import socket
import time

ARGUMENTS = {
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "model": {"type": "str"},
    "key": {"type": "str", "no_log": True},
    "token": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 10.0},
}
_ANSWER_LIMIT = 1024 * 1024


def run(task):
    """Returns health (HTTP status or None), models, token (True when one was generated), text, error, seconds."""
    args = task.args
    out = {"changed": False, "health": None, "models": [], "token": False, "text": "", "error": None, "phase": "health"}
    began = time.time()
    try:
        out["health"], _ = _exchange(args, "GET", "/health", None)
        if out["health"] == 200:
            out["phase"] = "models"
            status, body = _exchange(args, "GET", "/v1/models", None)
            listed = body.get("data") if isinstance(body, dict) else None
            out["models"] = [str(item.get("id")) for item in listed or [] if isinstance(item, dict)]
            if status != 200:
                out["error"] = "/v1/models answers %d" % status
            elif args["token"]:
                out["phase"] = "token"
                _generate(args, out)
        else:
            out["error"] = "/health answers %d" % out["health"]
    except (OSError, http.client.HTTPException, ValueError) as error:
        out["error"] = _words(error)
    out["seconds"] = round(time.time() - began, 3)
    return out


def _words(error):
    if isinstance(error, socket.timeout):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _exchange(args, method, path, body):
    connection = http.client.HTTPConnection(args["address"], args["port"], timeout=args["timeout"])
    headers = {"Accept": "application/json"}
    if args.get("key"):
        headers["Authorization"] = "Bearer " + args["key"]
    data = None
    if body is not None:
        data = json.dumps(body).encode("utf-8")
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        raw = answer.read(_ANSWER_LIMIT).decode("utf-8", "replace")
    finally:
        connection.close()
    try:
        return answer.status, json.loads(raw)
    except ValueError:
        return answer.status, raw


def _generate(args, out):
    model = args.get("model") or (out["models"][0] if out["models"] else "")
    status, body = _exchange(args, "POST", "/v1/chat/completions", {
        "model": model, "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "Say ok."}]})
    if status != 200 or not isinstance(body, dict):
        text = body if isinstance(body, str) else json.dumps(body, sort_keys=True)
        out["error"] = "a generation is answered with %d: %s" % (status, text[:200])
        return
    choices = body.get("choices") or [{}]
    message = choices[0].get("message") or {}
    text = "".join(str(message.get(name) or "") for name in ("reasoning", "reasoning_content", "content"))
    made = (body.get("usage") or {}).get("completion_tokens") or 0
    out["text"] = text[:200]
    out["token"] = bool(text) or bool(message.get("tool_calls")) or made > 0
    if not out["token"]:
        out["error"] = "the generation is empty"
