"""Files from a hub over HTTP, in the layout of huggingface.co: the list of a revision, then each file, resumed where it
was cut. Mirrors keep the same layout under another address. Python 3.6.
"""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request

from bringup.agent.transfer.wire import BLOCK, Trouble

TIMEOUT = 30.0
"""Seconds until an answer begins, and for each silence in it."""

_SAFE = "/-_.~"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The token goes to the hub alone, not to the store that it points to."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super(_Redirects, self).redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


class Hub(object):
    """A revision of a repository at the first of `endpoints` that answers.

    `upstream` has endpoints, repo, revision (a commit), and token, proxy and certificates where the site has them.
    """

    def __init__(self, node, upstream):
        self.node = node
        self.endpoints = [str(one).rstrip("/") for one in upstream["endpoints"]]
        self.repo = upstream["repo"]
        self.revision = upstream["revision"]
        self.token = upstream.get("token")
        handlers = [_Redirects()]
        if upstream.get("proxy") is not None:
            proxy = upstream["proxy"]
            handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {}))
        if upstream.get("certificates"):
            context = ssl.create_default_context(cafile=upstream["certificates"])
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self.opener = urllib.request.build_opener(*handlers)
        self.current = 0

    def ready(self, name):
        return True

    def source(self):
        return self.endpoints[self.current]

    def entries(self):
        """The files of the revision as entries, and the commit that it is. Raises Trouble."""
        troubles = []
        for index, endpoint in enumerate(self.endpoints):
            url = "%s/api/models/%s/revision/%s?blobs=true" % (
                endpoint, _quoted(self.repo), urllib.parse.quote(self.revision, safe=""))
            try:
                with self._open(url) as answer:
                    told = json.loads(answer.read().decode("utf-8"))
                self.current = index
                return [_entry(one, endpoint) for one in told["siblings"]], str(told["sha"])
            except Trouble as trouble:
                troubles.append(trouble)
            except (ValueError, KeyError, TypeError):
                troubles.append(Trouble("input", "%s gives no list of files" % endpoint))
            except OSError as error:
                troubles.append(Trouble("network", "%s: %s" % (endpoint, _reason(error))))
        raise troubles[0] if len(troubles) == 1 else Trouble(
            troubles[-1].kind, "no endpoint gives the list of %s" % self.repo,
            found="; ".join(trouble.message for trouble in troubles))

    def copy(self, entry, part):
        """Fill the part from where it was cut; the SHA-256 that the hub names, or None. Raises Trouble or OSError."""
        url = "%s/%s/resolve/%s/%s" % (self.endpoints[self.current], _quoted(self.repo), self.revision,
                                       _quoted(entry["path"]))
        if part.size == entry["size"] and part.size:
            return entry.get("sha256")
        try:
            answer = self._open(url, part.size)
            with answer:
                if part.size and answer.getcode() != 206:
                    part.restart()
                self._read(answer, entry, part)
        except (Trouble, OSError, http.client.HTTPException) as error:
            if getattr(error, "kind", "network") == "network" and len(self.endpoints) > 1:
                self.current = (self.current + 1) % len(self.endpoints)
            if isinstance(error, http.client.HTTPException):
                raise Trouble("network", "%s ended after %d of %d bytes" % (url, part.size, entry["size"]))
            raise
        if part.size < entry["size"]:
            raise Trouble("network", "%s ended after %d of %d bytes" % (url, part.size, entry["size"]))
        return entry.get("sha256")

    def _read(self, answer, entry, part):
        while True:
            data = answer.read(BLOCK)
            if not data:
                return
            if part.size + len(data) > entry["size"]:
                raise Trouble("digest", "%s is longer than the list says" % entry["path"], path=entry["path"],
                              expected=entry["size"])
            self.node.in_rate.take(len(data))
            part.write(data)
            self.node.count(len(data))

    def _open(self, url, offset=0):
        headers = {"User-Agent": "bringup", "Accept-Encoding": "identity"}
        if self.token:
            headers["Authorization"] = "Bearer %s" % self.token
        if offset:
            headers["Range"] = "bytes=%d-" % offset
        try:
            return self.opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            raise _refused(error, url, bool(self.token))
        except urllib.error.URLError as error:
            raise Trouble("network", "%s: %s" % (url, _reason(error)))


def _refused(error, url, token):
    told = error.headers.get("X-Error-Message") if error.headers else None
    text = "%s answers %d%s" % (url, error.code, ": " + told if told else "")
    error.close()
    if error.code in (401, 403):
        return Trouble("input", text, next="the site's token may not read it: correct weights.token" if token else
                       "it wants a token: set weights.token in the deployment, from a vault")
    if error.code == 404:
        return Trouble("input", text, next="correct the repo or the revision of `weights`")
    return Trouble("network", text)


def _entry(one, endpoint):
    lfs = one.get("lfs") or {}
    size = lfs.get("size", one.get("size"))
    if size is None:
        raise Trouble("input", "%s does not say how long %s is" % (endpoint, one.get("rfilename")))
    entry = {"path": str(one["rfilename"]), "kind": "file", "size": int(size), "mode": 0o644}
    sha256 = lfs.get("sha256") or lfs.get("oid")
    if sha256:
        entry["sha256"] = str(sha256)
    elif one.get("blobId"):
        entry["blob"] = str(one["blobId"])
    return entry


def _quoted(text):
    return urllib.parse.quote(text, safe=_SAFE)


def _reason(error):
    inner = getattr(error, "reason", None)
    return getattr(inner, "strerror", None) or str(inner or getattr(error, "strerror", None) or error)

