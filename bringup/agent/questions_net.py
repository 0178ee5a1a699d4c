"""Questions about the network: names, ways to peers, packet size, ports, proxies. Python 3.6."""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

from bringup.agent.questions_load import held_by_another


def tree(value):
    """A JSON answer."""
    return {"rc": 0, "stdout": json.dumps(value, sort_keys=True, indent=1) + "\n"}


def names(given):
    """What each name resolves to here, side by side."""
    out = {}

    def resolve(name):
        begun = time.time()
        try:
            found = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
            value = {"addresses": sorted(set(item[4][0] for item in found))}
        except (OSError, UnicodeError) as error:
            value = {"addresses": [], "error": getattr(error, "strerror", None) or str(error)}
        value["seconds"] = round(time.time() - begun, 3)
        out[name] = value

    own = socket.gethostname()
    threads = []
    for name in sorted(set([own] + [str(name) for name in given.get("names", [])])):
        thread = threading.Thread(target=resolve, args=(name,))
        thread.daemon = True
        thread.start()
        threads.append((name, thread))
    until = time.time() + float(given.get("wait", 3))
    for name, thread in threads:
        thread.join(max(0.0, until - time.time()))
        if thread.is_alive():
            out[name] = {"addresses": [], "error": "no answer within %g s" % float(given.get("wait", 3))}
    return tree({"hostname": own, "names": dict(out)})


def reach(given):
    """For each peer: the address and MTU that the route takes, and whether a full packet passes unfragmented."""
    out = {}

    def ask(name, address):
        one = {"address": address}
        try:
            family, _, _, _, target = socket.getaddrinfo(address, 9, 0, socket.SOCK_DGRAM)[0]
            sock = socket.socket(family, socket.SOCK_DGRAM)
            sock.connect(target)
            one["source"] = sock.getsockname()[0]
            level, option = (socket.IPPROTO_IP, 14) if family == socket.AF_INET else (socket.IPPROTO_IPV6, 24)
            one["mtu"] = struct.unpack("i", sock.getsockopt(level, option, 4))[0]
            sock.close()
        except OSError as error:
            one["error"] = error.strerror or str(error)
            out[name] = one
            return
        ping = shutil.which("ping") or shutil.which("ping", path="/usr/sbin:/sbin:/bin:/usr/bin")
        if ping is None:
            one["ping"] = "no ping here"
        else:
            header = 28 if family == socket.AF_INET else 48
            # more than 64 KiB minus headers cannot be asked for; one refused packet says less than two
            one["ping"] = _ping(ping, address, min(one["mtu"], 65535) - header)
            if one["ping"] != "passes":
                one["small"] = _ping(ping, address, 1500 - header if one["mtu"] > 1500 else 56)
        out[name] = one

    threads = [threading.Thread(target=ask, args=(str(name), str(address)))
               for name, address in sorted(dict(given.get("peers", {})).items())]
    for thread in threads:
        thread.daemon = True
        thread.start()
    until = time.time() + 12
    for thread in threads:
        thread.join(max(0.0, until - time.time()))
    return tree(dict(out))


def _ping(ping, address, payload):
    try:
        process = subprocess.Popen(
            [ping, "-n", "-q", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", str(payload), address],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = process.communicate(timeout=5)[0].decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError) as error:
        return "cannot ask: %s" % error
    if process.returncode == 0:
        return "passes"
    lower = text.lower()
    if "too long" in lower or "too large" in lower or "frag needed" in lower:
        return "too long"
    if "permission" in lower or "not permitted" in lower or "usage" in lower or "invalid" in lower:
        return "cannot ask: %s" % " ".join(text.split())[:120]
    return "no answer"


def meet(given):
    """Listen on own ports that are free and connect to the peers' meanwhile, all for `seconds`.

    Gives for each own port whether it could be listened on, and for each peer's port what connecting came to.
    """
    until = time.time() + float(given.get("seconds", 6))
    own, sockets = {}, []
    # another run may be about to start what binds these ports: they are left to it
    for port in [] if held_by_another(given) else given.get("listen", []):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(given.get("address", "")), int(port)))
            sock.listen(64)
            own[str(port)] = "listens"
            sockets.append(sock)
        except OSError as error:
            own[str(port)] = error.strerror or str(error)
            sock.close()
    found = {}

    def dial(name, address, port):
        key = "%s:%d" % (name, port)
        last = "no answer"
        while time.time() < until:
            try:
                socket.create_connection((address, port), timeout=max(0.2, min(2.0, until - time.time()))).close()
                found[key] = "connects"
                return
            except socket.timeout:
                last = "no answer"
            except OSError as error:
                last = error.strerror or str(error)
            found[key] = last
            time.sleep(0.2)

    threads = []
    for name, peer in sorted(dict(given.get("peers", {})).items()):
        for port in peer.get("ports", []):
            thread = threading.Thread(target=dial, args=(str(name), str(peer.get("address")), int(port)))
            thread.daemon = True
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, until + 2.5 - time.time()))
    # the others may have begun later: their calls are answered to the end
    time.sleep(max(0.0, until - time.time()))
    for sock in sockets:
        sock.close()
    return tree({"listen": own, "connect": dict(found)})


_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_SETTING = re.compile(r"(?im)^\s*(?:export\s+)?(https?_proxy|no_proxy|all_proxy)=[\"']?([^\"'\s;]+)")


def proxy(given):
    """Proxy variables of this session and of login files, credentials masked."""
    names = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
    session = dict((key.lower(), _CREDENTIALS.sub("//********@", value)) for key, value in os.environ.items()
                   if key.lower() in names and value)
    files = {}
    for path in ["/etc/environment", "/etc/profile"] + sorted(
            os.path.join("/etc/profile.d", name) for name in _listed("/etc/profile.d")):
        try:
            with open(path, "rb") as handle:
                text = handle.read(65536).decode("utf-8", "replace")
        except OSError:
            continue
        for key, value in _SETTING.findall(text):
            files.setdefault(path, {})[key.lower()] = _CREDENTIALS.sub("//********@", value)
    return tree({"session": session, "files": files})


def _listed(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def fetch(given):
    """How far the way to each address of `urls` goes: dns, connect, proxy, tls or http, and what stopped it there.

    By the proxy of this session where one is set for the address. The answer's first bytes are asked for, no more.
    """
    out = {}

    def ask(url):
        begun = time.time()
        try:
            one = _stage(url, 6.0)
        except ValueError as error:
            one = {"stage": "address", "error": str(error)}
        one["seconds"] = round(time.time() - begun, 3)
        out[url] = one

    threads = [threading.Thread(target=ask, args=(str(url),)) for url in given.get("urls", [])]
    for thread in threads:
        thread.daemon = True
        thread.start()
    until = time.time() + 14
    for thread in threads:
        thread.join(max(0.0, until - time.time()))
    for url in given.get("urls", []):
        out.setdefault(str(url), {"stage": "dns", "error": "no answer within 14 s"})
    return tree(dict(out))


def _stage(url, seconds):
    from urllib.parse import urlsplit
    from urllib.request import getproxies_environment, proxy_bypass_environment

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an address of http or https")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    proxies = getproxies_environment()
    way = proxies.get(parts.scheme) or proxies.get("all")
    if way and proxy_bypass_environment(parts.hostname, proxies):
        way = None
    via = urlsplit(way if "//" in way else "http://" + way) if way else None
    host, door = (via.hostname or "", via.port or 3128) if via else (parts.hostname, port)
    shown = {"by": "%s:%d" % (host, door)} if via else {}
    try:
        socket.getaddrinfo(host, door, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return dict(shown, stage="dns", error=getattr(error, "strerror", None) or str(error))
    try:
        sock = socket.create_connection((host, door), timeout=seconds)
    except OSError as error:
        return dict(shown, stage="connect", error="no answer" if isinstance(error, socket.timeout)
                    else error.strerror or str(error))
    try:
        return dict(shown, **_speak(sock, parts, port, via))
    except (OSError, ValueError) as error:
        return dict(shown, stage="http", error="no answer" if isinstance(error, socket.timeout)
                    else getattr(error, "strerror", None) or str(error))
    finally:
        sock.close()


def _speak(sock, parts, port, via):
    """The rest of the way on a connected socket: the proxy's consent, TLS, the first line of the answer."""
    import base64
    import ssl
    from urllib.parse import unquote

    credentials = ""
    if via is not None and via.username:
        pair = "%s:%s" % (unquote(via.username), unquote(via.password or ""))
        credentials = "Proxy-Authorization: Basic %s\r\n" % base64.b64encode(pair.encode("utf-8")).decode("ascii")
    path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    if parts.scheme == "https":
        if via is not None:
            sock.sendall(("CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n%s\r\n" % (
                parts.hostname, port, parts.hostname, port, credentials)).encode("ascii"))
            status = _status(sock)
            if status != 200:
                return {"stage": "proxy", "error": "it answers %d" % status, "status": status}
        try:
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=parts.hostname)
        except ssl.SSLError as error:
            return {"stage": "tls", "error": getattr(error, "verify_message", "") or error.reason or str(error)}
        except OSError as error:
            return {"stage": "tls", "error": error.strerror or str(error) or "it closed the connection"}
    elif via is not None:
        path = "http://%s:%d%s" % (parts.hostname, port, path)
    head = ("GET %s HTTP/1.1\r\nHost: %s\r\n%sUser-Agent: bringup-preflight\r\nRange: bytes=0-0\r\n"
            "Connection: close\r\n\r\n")
    sock.sendall((head % (path, parts.hostname, credentials if parts.scheme == "http" else "")).encode("ascii"))
    status = _status(sock)
    if status >= 400 and status not in (401, 403, 416):
        return {"stage": "http", "error": "it answers %d" % status, "status": status}
    return {"stage": "done", "status": status}


def _status(sock):
    data = b""
    while b"\r\n" not in data and len(data) < 4096:
        more = sock.recv(512)
        if not more:
            break
        data += more
    match = re.match(br"HTTP/\d\.\d (\d{3})", data)
    if not match:
        raise ValueError("what answers is no web server")
    status = int(match.group(1))
    if status == 200 and b"\r\n\r\n" not in data:
        while b"\r\n\r\n" not in data and len(data) < 65536:
            more = sock.recv(512)
            if not more:
                break
            data += more
    return status
