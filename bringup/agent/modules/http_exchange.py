"""Do a list of HTTP requests on this host and give back what came: status, headers, body, lines of a stream with times.

The controller needs no route to the endpoint then. A request is {"id", "method", "path", "body" (JSON value),
"headers", "stream", "timeout" (seconds, for connecting, and for each silence of the answer), "close_after" (lines of a
stream after which this side hangs up), "wait" (seconds before it is sent)}.
"""

import http.client
import json
import socket
import threading
import time

from bringup.agent.task import Failure

ARGUMENTS = {
    "host": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "requests": {"type": "list", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "side_by_side": {"type": "int", "default": 1},
    "timeout": {"type": "float", "default": 60.0},
}
READS_ONLY = True
LARGEST = 4 * 1024 * 1024


def run(task):
    """One response a request, in their order; a request that got none has `error` and status 0."""
    requests = task.args["requests"]
    for request in requests:
        if not isinstance(request, dict) or not str(request.get("path", "")).startswith("/"):
            raise Failure("a request is a mapping with a path", found=repr(request)[:200])
    responses = [None] * len(requests)
    waiting = list(range(len(requests)))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                index = waiting.pop(0)
            responses[index] = exchange(task.args["host"], int(task.args["port"]), requests[index],
                                        task.args.get("api_key"), float(task.args.get("timeout") or 60.0))

    threads = [threading.Thread(target=work) for _ in range(max(1, min(int(task.args.get("side_by_side") or 1), 64)))]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join()
    return {"changed": False, "responses": responses}


def exchange(host, port, request, api_key, timeout):
    """One request; never raises for what the network or the server does."""
    if request.get("wait"):
        time.sleep(float(request["wait"]))
    started = time.time()
    answer = {"id": request.get("id"), "status": 0, "headers": {}, "body": "", "events": [], "error": None}
    headers = {"Accept": "text/event-stream" if request.get("stream") else "application/json"}
    if api_key:
        headers["Authorization"] = "Bearer " + api_key
    headers.update(request.get("headers") or {})
    body = None
    if request.get("body") is not None:
        body = json.dumps(request["body"]).encode("utf-8")
        headers["Content-Type"] = "application/json"
    connection = http.client.HTTPConnection(host, port, timeout=float(request.get("timeout") or timeout))
    try:
        connection.request(str(request.get("method") or ("POST" if body else "GET")), request["path"], body, headers)
        response = connection.getresponse()
        answer["status"] = response.status
        answer["headers"] = {name.lower(): value for name, value in response.getheaders()}
        if "text/event-stream" in answer["headers"].get("content-type", ""):
            _events(response, answer, started, request.get("close_after"))
        else:
            answer["body"] = response.read(LARGEST).decode("utf-8", "replace")
    except socket.timeout:
        answer["error"] = "no answer within %g s" % float(request.get("timeout") or timeout)
    except (OSError, http.client.HTTPException) as error:
        answer["error"] = getattr(error, "strerror", None) or str(error) or type(error).__name__
    finally:
        connection.close()
    answer["seconds"] = round(time.time() - started, 3)
    return answer


def _events(response, answer, started, most=None):
    """The data lines of an event stream, each with the second at which it came."""
    size = 0
    while size < LARGEST:
        line = response.readline()
        if not line:
            return
        size += len(line)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("data:"):
            answer["events"].append([round(time.time() - started, 4), text[5:].strip()])
            if most and len(answer["events"]) >= int(most):
                return
