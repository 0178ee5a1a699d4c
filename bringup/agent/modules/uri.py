"""Ask a web service from the host."""

import json
import os
import time

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "url": {"type": "str", "required": True},
    "method": {"type": "str", "default": "GET"},
    "body": {"type": "raw"},
    "body_format": {"type": "str", "default": "raw", "choices": ["json", "form-urlencoded", "form", "raw"]},
    "headers": {"type": "dict", "default": {}},
    "status_code": {"type": "list", "default": [200]},
    "return_content": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 30},
    "validate_certs": {"type": "bool", "default": True},
    "ca_path": {"type": "path"},
    "follow_redirects": {"type": "str", "default": "safe", "choices": ["all", "none", "safe", "no", "yes", "urllib2"]},
    "url_username": {"type": "str", "aliases": ["user"]},
    "url_password": {"type": "str", "aliases": ["password"], "no_log": True},
    "force_basic_auth": {"type": "bool", "default": False},
    "use_proxy": {"type": "bool", "default": True},
    "http_agent": {"type": "str", "default": "bringup"},
    "creates": {"type": "path"},
    "removes": {"type": "path"},
}
LARGEST = 32 << 20
"""Bytes of an answer that are read."""


def run(task):
    args = task.args
    if task.check:
        return {"changed": False, "skipped": True, "msg": "uri asks nothing in check mode"}
    method = str(args.get("method") or "GET").upper()
    if not method.isalpha():
        raise Failure("Parameter 'method' needs to be a single word in uppercase, like GET or POST.", found=method)
    for name, wanted, text in (("creates", True, "exists"), ("removes", False, "does not exist")):
        path = _files.expand(args.get(name))
        if path is not None and os.path.exists(path) == wanted:
            return {"changed": False, "stdout": "skipped, since '%s' %s" % (path, text)}
    try:
        codes = [int(code) for code in args.get("status_code") or [200]]
    except (TypeError, ValueError):
        raise Failure("status_code takes numbers", found=str(args.get("status_code")))
    began = time.monotonic()
    out = _ask(args, method, _headers_and_body(args))
    out["elapsed"] = int(time.monotonic() - began)
    if out["status"] not in codes:
        message = "Status code was %s and not %s: %s" % (out["status"], codes, out.pop("msg", ""))
        raise Failure(message, **{key: value for key, value in out.items() if key != "changed"})
    return out


def _headers_and_body(args):
    import urllib.parse

    headers = {str(key): str(value) for key, value in (args.get("headers") or {}).items()}
    known = {key.lower() for key in headers}
    body, form = args.get("body"), args.get("body_format") or "raw"
    if form == "json":
        if not isinstance(body, str):
            body = json.dumps(body)
        if "content-type" not in known:
            headers["Content-Type"] = "application/json"
    elif form in ("form", "form-urlencoded"):
        if isinstance(body, dict):
            body = urllib.parse.urlencode([(key, one) for key, value in body.items()
                                           for one in (value if isinstance(value, list) else [value])])
        elif isinstance(body, list):
            body = urllib.parse.urlencode([tuple(pair) for pair in body])
        if "content-type" not in known:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
    elif body is not None and not isinstance(body, str):
        # what stood as a mapping in the playbook is sent as the JSON that it looks like
        body = json.dumps(body)
    if "user-agent" not in known:
        headers["User-Agent"] = args.get("http_agent") or "bringup"
    return headers, None if body is None else body.encode("utf-8")


def _ask(args, method, sent):
    import http.client
    import urllib.error
    import urllib.request

    headers, body = sent
    url = args["url"]
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        opener = _opener(args, method, urllib.request)
    except (ValueError, OSError) as error:
        raise Failure("the request cannot be made: %s" % error, url=url)
    try:
        response = opener.open(request, timeout=args.get("timeout", 30))
    except urllib.error.HTTPError as error:
        response = error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return {"changed": False, "status": -1, "url": url, "redirected": False,
                "msg": "Request failed: %s" % reason}
    with response:
        return _answer(args, url, response)


def _opener(args, method, request):
    import ssl

    context = ssl.create_default_context(cafile=_files.expand(args.get("ca_path")))
    if not args.get("validate_certs", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers = [request.HTTPSHandler(context=context)]
    if not args.get("use_proxy", True):
        handlers.append(request.ProxyHandler({}))
    if args.get("url_username"):
        passwords = request.HTTPPasswordMgrWithPriorAuth() if args.get("force_basic_auth") else \
            request.HTTPPasswordMgrWithDefaultRealm()
        extra = {"is_authenticated": True} if args.get("force_basic_auth") else {}
        passwords.add_password(None, args["url"], args["url_username"], args.get("url_password") or "", **extra)
        handlers += [request.HTTPBasicAuthHandler(passwords), request.HTTPDigestAuthHandler(passwords)]
    follow = args.get("follow_redirects") or "safe"
    if follow in ("none", "no") or (follow == "safe" and method not in ("GET", "HEAD")):
        class _Stay(request.HTTPRedirectHandler):
            def redirect_request(self, *_args, **_kwargs):
                return None
        handlers.append(_Stay())
    return request.build_opener(*handlers)


def _answer(args, url, response):
    out = {"changed": False, "status": int(response.getcode()), "url": response.geturl()}
    out["redirected"] = out["url"] != url
    for name, value in response.headers.items():
        key = name.lower().replace("-", "_")
        out[key] = "%s, %s" % (out[key], value) if key in out and key not in ("status", "url", "changed") else value
    out["msg"] = "OK (%s bytes)" % response.headers.get("Content-Length", "unknown")
    if out["status"] >= 300:
        out["msg"] = "HTTP Error %d: %s" % (out["status"], getattr(response, "reason", "") or "")
    kind = (response.headers.get_content_type() or "").lower()
    is_json = kind.partition("/")[2].rpartition("+")[2] in ("json", "javascript")
    data = response.read(LARGEST)
    text = data.decode(response.headers.get_content_charset() or "utf-8", "replace")
    if is_json:
        try:
            out["json"] = json.loads(text)
        except ValueError:
            out["warnings"] = ["the answer says that it is JSON and is not"]
    if args.get("return_content"):
        out["content"] = text
    return out
