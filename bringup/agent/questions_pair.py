"""Measuring the way between two hosts: small messages and a stream over TCP, perftest over RDMA. Python 3.6.

One host listens, the other dials; the controller sees to it that no host is in two pairs at once.
"""

import json
import os
import shutil
import socket
import threading
import time

from bringup.agent.questions_load import held_by_another

STREAMS = 4
"""Connections of a stream: one is held back by the work of one core."""
ROUND_TRIPS = 60


def _tree(value):
    return {"rc": 0, "stdout": json.dumps(value, sort_keys=True) + "\n"}


def listen(given):
    """Listen on `address`:`port`, echo the small messages, swallow the streams; gives the bytes that came."""
    if held_by_another(given):
        return _tree({"error": "another run holds this host"})
    until = time.time() + float(given.get("seconds", 6))
    family = socket.AF_INET6 if ":" in str(given.get("address")) else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((str(given["address"]), int(given["port"])))
        server.listen(STREAMS + 1)
    except OSError as error:
        server.close()
        return _tree({"error": error.strerror or str(error)})
    came, threads = [0], []
    guard = threading.Lock()

    def serve(sock):
        sock.settimeout(max(0.1, until - time.time()))
        total = _serve(sock)
        with guard:
            came[0] += total

    accepted = 0
    try:
        while accepted < STREAMS + 1 and time.time() < until:
            server.settimeout(max(0.05, until - time.time()))
            try:
                sock, _ = server.accept()
            except OSError:
                break
            accepted += 1
            thread = threading.Thread(target=serve, args=(sock,))
            thread.daemon = True
            thread.start()
            threads.append(thread)
    finally:
        server.close()
    for thread in threads:
        thread.join(max(0.0, until - time.time()))
    return _tree({"bytes": came[0], "connections": accepted})


def _serve(sock):
    """Echo small messages, or swallow a stream and answer with its size. The bytes of the stream."""
    total = 0
    try:
        if sock.recv(1) == b"p":
            data = sock.recv(64)
            while data:
                sock.sendall(data)
                data = sock.recv(64)
            return 0
        buffer = bytearray(1 << 20)
        got = sock.recv_into(buffer)
        while got:
            total += got
            got = sock.recv_into(buffer)
        sock.sendall(b"%d\n" % total)
    except OSError:
        # a stream that broke off: the dialling side says so
        return total
    finally:
        sock.close()
    return total


def dial(given):
    """Reach a listening host: `rtt_us`, the median of small messages, and `gbits` of a stream of `stream` seconds."""
    if held_by_another(given):
        return _tree({"error": "another run holds this host"})
    target = (str(given["address"]), int(given["port"]))
    until = time.time() + float(given.get("seconds", 6))
    sock, last = None, "no answer"
    while sock is None and time.time() < until - 1:
        try:
            sock = socket.create_connection(target, timeout=1.0)
        except OSError as error:
            last = getattr(error, "strerror", None) or str(error)
            time.sleep(0.03)
    if sock is None:
        return _tree({"error": last})
    try:
        return _tree({"rtt_us": _round_trips(sock), "gbits": _stream(target, float(given.get("stream", 0.7)))})
    except OSError as error:
        return _tree({"error": "the connection broke: %s" % (error.strerror or error)})
    finally:
        sock.close()


def _round_trips(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(2.0)
    sock.sendall(b"p")
    times = []
    for _ in range(ROUND_TRIPS):
        begun = time.time()
        sock.sendall(b"12345678")
        if not sock.recv(64):
            raise OSError("the other side left")
        times.append(time.time() - begun)
    sock.close()
    return round(sorted(times)[len(times) // 2] * 1e6, 1)


def _stream(target, seconds):
    totals, errors = [], []
    block = memoryview(bytes(1 << 20))
    begun = time.time()
    end = begun + seconds

    def send():
        try:
            sock = socket.create_connection(target, timeout=2.0)
            sock.sendall(b"s")
            while time.time() < end:
                sock.send(block)
            sock.shutdown(socket.SHUT_WR)
            # what has arrived counts, not what was handed to the kernel
            text = b""
            while not text.endswith(b"\n"):
                part = sock.recv(64)
                if not part:
                    raise OSError("the other side left")
                text += part
            totals.append(int(text))
            sock.close()
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(STREAMS)]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(seconds + 4)
    if errors or len(totals) < STREAMS:
        raise errors[0] if errors else OSError("the stream did not end")
    return round(sum(totals) * 8 / (time.time() - begun) / 1e9, 3)


def perftest_argv(tool, link, address):
    """The command of one side; the dialling side names the other's address."""
    argv = [tool, "-d", str(link["device"]), "-F", "-p", str(link["port"])]
    if link.get("gid") is not None:
        argv += ["-x", str(link["gid"])]
    argv += ["-s", "8388608", "-D", "2", "--report_gbits"] if tool.endswith("_bw") else ["-s", "8", "-n", "2000"]
    return argv + ([address] if address else [])


def perftest(given):
    """Run ib_write_bw or ib_write_lat on each of `links` side by side, dialling `address` or listening without one.

    Gives {device: {"rc", "text"}}, or `error`.
    """
    from bringup.agent import questions_load

    if held_by_another(given):
        return _tree({"error": "another run holds this host"})
    tool = shutil.which(str(given["tool"]), path=questions_load._path())
    if tool is None:
        return _tree({"error": "no %s here" % given["tool"]})
    address = str(given.get("address") or "")
    if address:
        time.sleep(0.7)  # the other side listens first: perftest tries once
    out, threads = {}, []

    def measure(link):
        rc, text = questions_load._output(perftest_argv(tool, link, address), float(given.get("seconds", 12)),
                                          dict(os.environ, LC_ALL="C"))
        out[str(link["device"])] = {"rc": rc, "text": text[-6000:]}

    for link in given.get("links", []):
        thread = threading.Thread(target=measure, args=(link,))
        thread.daemon = True
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(float(given.get("seconds", 12)) + 2)
    return _tree({"links": dict(out)})
