"""A build goes from host to host: one offers it on the cluster network for some minutes, others take it. Python 3.6.

`action`
    offer    pack the build, listen on `address`, answer {"port", "pid", "size", "sha256"} and go on serving in a child
    take     fetch from `address`:`port` (or from the staged blob `blob`), unpack, compare, prove, name it
    end      stop an offer (`pid`, `started`)
    slice    `length` bytes of the packed build from `offset`: for hosts that reach each other only by the controller
A transfer has a key of its own, made for it by the controller and used once. Both sides prove that they have it
(HMAC-SHA256 over both sides' random words) before a byte is sent; the content is named by its SHA-256, which the
taker was told by the controller. No account, key or agent of the operator touches a host.
"""

import base64
import hashlib
import hmac
import os
import shutil
import socket
import sys
import tarfile
import threading
import time

from bringup.agent import pids
from bringup.agent.modules import kernel_build
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["offer", "take", "end", "slice"]},
    "build": {"type": "dict", "default": {}},
    "address": {"type": "str"},
    "port": {"type": "int", "default": 0},
    "keys": {"type": "list", "default": []},
    "key": {"type": "str"},
    "size": {"type": "int", "default": 0},
    "sha256": {"type": "str"},
    "seconds": {"type": "float", "default": 600.0},
    "pid": {"type": "int", "default": 0},
    "started": {"type": "str"},
    "offset": {"type": "int", "default": 0},
    "length": {"type": "int", "default": 4194304},
    "blob": {"type": "str"},
    "source": {"type": "str"},
}
WORD = 32
CONNECT = 8.0
IDLE = 30.0
MAGIC = b"bringup-build-1\n"


def run(task):
    os.umask(0o022)
    action = task.args["action"]
    if action == "end":
        return _end(task)
    if action == "take":
        return _take(task)
    if task.check:
        return {"changed": False, "skipped": True}
    packed, size, digest = _packed(task)
    if action == "slice":
        return _slice(packed, int(task.args["offset"]), int(task.args["length"]), size, digest)
    return _offer(task, packed, size, digest)


def packed_path(root, digest):
    return os.path.join(root, "cache", "kernels", digest[:20] + ".tar")


def _packed(task):
    """The build as a tar under cache/, made when it is not there: path, size, SHA-256."""
    digest = task.args["build"]["digest"]
    there = kernel_build.found(task.root, digest)
    if not there["sound"]:
        raise Failure("the build is not here", found=there["reason"], expected=there["path"])
    path = packed_path(task.root, digest)
    newer = os.path.getmtime(os.path.join(there["path"], kernel_build.MARKER))
    if not os.path.exists(path) or os.path.getmtime(path) < newer:
        kernel_build.make(os.path.dirname(path))
        staged = "%s.%d" % (path, os.getpid())
        with tarfile.open(staged, "w", format=tarfile.PAX_FORMAT) as archive:
            for base, folders, names in os.walk(there["path"]):
                folders.sort()
                folders[:] = [name for name in folders if name != "__pycache__"]
                for name in sorted(names):
                    full = os.path.join(base, name)
                    entry = archive.gettarinfo(full, os.path.relpath(full, there["path"]))
                    entry.uid = entry.gid = 0
                    entry.uname = entry.gname = ""
                    if entry.islnk():
                        entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", os.path.getsize(full)
                    if entry.isreg():
                        with open(full, "rb") as handle:
                            archive.addfile(entry, handle)
                    else:
                        archive.addfile(entry)
        os.rename(staged, path)
    return path, os.path.getsize(path), _sha256(path)


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def _slice(path, offset, length, size, digest):
    with open(path, "rb") as handle:
        handle.seek(offset)
        data = handle.read(length)
    return {"changed": False, "content": base64.b64encode(data).decode("ascii"), "size": size, "sha256": digest}


def _offer(task, packed, size, digest):
    """Listen, then leave a child that serves each key once and ends after the last one or `seconds`."""
    keys = [bytes.fromhex(key) for key in task.args["keys"]]
    address = str(task.args["address"])
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.bind((address, int(task.args.get("port") or 0)))
        server.listen(64)
    except OSError as error:
        server.close()
        raise Failure("cannot listen on %s: %s" % (address, error.strerror or error), found=address,
                      next="set cluster_address of this host")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                os.write(write_end, ("%d\n" % grandchild).encode())
                os._exit(0)
            _detach(server, task.lock_fd)
            serve(server, packed, size, keys, float(task.args["seconds"]))
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    pid = int(os.read(read_end, 32) or b"0")
    os.close(read_end)
    port = server.getsockname()[1]
    server.close()
    return {"changed": False, "port": port, "pid": pid, "started": pids.start_time(pid), "size": size,
            "sha256": digest}


def _detach(server, lock_fd):
    """Nothing of the session is kept: its pipes would hold it open, its lock would hold the host."""
    keep = {server.fileno()}
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:
                continue


def serve(server, path, size, keys, seconds):
    """Answer until every key was used or the time is over. Wrong words get nothing."""
    until = time.time() + seconds
    left = list(keys)
    guard = threading.Lock()
    threads = []
    while left and time.time() < until:
        server.settimeout(min(1.0, max(0.05, until - time.time())))
        try:
            sock, _ = server.accept()
        except socket.timeout:
            continue
        except OSError:
            break
        thread = threading.Thread(target=_answer, args=(sock, path, size, left, guard))
        thread.daemon = True
        thread.start()
        threads.append(thread)
    server.close()
    for thread in threads:
        thread.join(max(0.0, until - time.time()))


def _answer(sock, path, size, left, guard):
    try:
        sock.settimeout(IDLE)
        mine = os.urandom(WORD)
        sock.sendall(MAGIC + mine)
        told = _exactly(sock, 2 * WORD)
        theirs, proof = told[:WORD], told[WORD:]
        with guard:
            key = next((item for item in left if hmac.compare_digest(_word(item, b"take", mine, theirs), proof)), None)
            if key is None:
                return
            left.remove(key)
        sock.sendall(_word(key, b"give", mine, theirs) + b"%020d" % size)
        with open(path, "rb") as handle:
            for piece in iter(lambda: handle.read(1 << 18), b""):
                sock.sendall(piece)
        _exactly(sock, 1)
    except OSError:
        return
    finally:
        sock.close()


def _word(key, role, mine, theirs):
    return hmac.new(key, role + mine + theirs, hashlib.sha256).digest()


def _exactly(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(min(count - len(data), 1 << 18))
        if not piece:
            raise OSError("the other side closed the connection")
        data += piece
    return data


def receive(address, port, key, path, size, sha256):
    """Fetch into `path`. Raises Failure; `peer_unreachable` where no connection came about."""
    try:
        sock = socket.create_connection((address, port), timeout=CONNECT)
    except OSError as error:
        raise Failure("%s:%d is not reached from here: %s" % (address, port, error.strerror or error),
                      peer_unreachable=True)
    try:
        sock.settimeout(IDLE)
        hello = _exactly(sock, len(MAGIC) + WORD)
        if not hello.startswith(MAGIC):
            raise Failure("%s:%d is not the host that offers the build" % (address, port), peer_unreachable=True)
        theirs, mine = hello[len(MAGIC):], os.urandom(WORD)
        sock.sendall(mine + _word(key, b"take", theirs, mine))
        answer = _exactly(sock, 32 + 20)
        if not hmac.compare_digest(answer[:32], _word(key, b"give", theirs, mine)):
            raise Failure("%s:%d does not have the key of this transfer" % (address, port))
        if int(answer[32:]) != size:
            raise Failure("the build changed while it was offered")
        digest, left = hashlib.sha256(), size
        with open(path, "wb") as handle:
            while left:
                piece = sock.recv(min(left, 1 << 18))
                if not piece:
                    raise OSError("the connection ended with %d bytes to come" % left)
                handle.write(piece)
                digest.update(piece)
                left -= len(piece)
        sock.sendall(b".")
    except OSError as error:
        raise Failure("the transfer from %s broke off: %s" % (address, error.strerror or error), peer_unreachable=True)
    finally:
        sock.close()
    if digest.hexdigest() != sha256:
        raise Failure("what came is not what was offered", expected=sha256, found=digest.hexdigest())


def _take(task):
    """Fetch, unpack beside, compare with what was built, prove on this host's own devices, then the name."""
    args, build = task.args, task.args["build"]
    digest = build["digest"]
    there = kernel_build.found(task.root, digest)
    if there["sound"]:
        return {"changed": False, "build": there, "from": args.get("source")}
    if task.check:
        return {"changed": True}
    place = kernel_build.staging(task.root, digest, "take")
    shutil.rmtree(place, ignore_errors=True)
    kernel_build.make(os.path.join(place, "out"))
    try:
        packed = os.path.join(place, "build.tar")
        if args.get("blob"):
            shutil.copyfile(task.blob(args["blob"]), packed)
        else:
            receive(str(args["address"]), int(args["port"]), bytes.fromhex(args["key"]), packed, int(args["size"]),
                    args["sha256"])
        _unpack(packed, os.path.join(place, "out"))
        os.unlink(packed)
        spec = dict(build["spec"], mode="receive", digest=digest, target=kernel_build.folder(task.root, digest))
        kernel_build.lay(task, place, spec, build.get("files"), build["runner"])
        result = kernel_build.run_here(place)
    finally:
        if kernel_build.found(task.root, digest)["sound"] or not os.path.exists(os.path.join(place, "result.json")):
            shutil.rmtree(place, ignore_errors=True)
    if not result.get("ok"):
        raise Failure("%s came over and is not proven here" % build["name"], **dict(result, folder=place))
    return {"changed": True, "build": kernel_build.found(task.root, digest), "from": args.get("source")}


def _unpack(packed, out):
    with tarfile.open(packed) as archive:
        for member in archive.getmembers():
            parts = member.name.split("/")
            if member.name.startswith("/") or ".." in parts or not (member.isreg() or member.issym()):
                raise Failure("the build holds something that is no plain file", found=member.name)
        if sys.version_info >= (3, 12):
            archive.extractall(out, filter="tar")
        else:
            archive.extractall(out)


def _end(task):
    pid, started = int(task.args["pid"]), task.args.get("started")
    if pid and started and pids.start_time(pid) == started:
        os.kill(pid, 15)
        return {"changed": False, "ended": True}
    return {"changed": False, "ended": False}
