"""What a start needs to know of this host: address and interface towards its peers, cores, NUMA nodes, model files.

Python 3.6; changes nothing. `/proc` and `/sys` under another root (a recorded host) are never read here: the lab says
its interface itself.
"""

import glob
import hashlib
import os
import socket
import struct

from bringup.agent.modules import _rdma

ARGUMENTS = {
    "peers": {"type": "list", "default": []},
    "address": {"type": "str"},
    "model": {"type": "str"},
    "rdma_ports": {"type": "list"},
}

_SMALL = (".json", ".jinja", ".txt", ".model", ".py")
_SMALL_LIMIT = 64 * 1024 * 1024


def run(task):
    found = _towards(task.args["peers"], task.args.get("address"))
    cores, nodes = _cores()
    chosen, left, index = _rdma.ports(wanted=task.args.get("rdma_ports"))
    found.update(changed=False, physical_cores=cores, numa_nodes=nodes, rdma_ports=chosen, rdma_left_out=left,
                 gid_index=index)
    if task.args.get("model"):
        found["model"] = manifest(task.args["model"])
    return found


def _towards(peers, wanted):
    """The address that the route to the peers takes, and the interface that holds it."""
    out = {"address": wanted, "interface": None, "unresolved": []}
    for peer in peers:
        try:
            family, _, _, _, target = socket.getaddrinfo(str(peer), 9, 0, socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(target)
                source = sock.getsockname()[0]
        except (OSError, UnicodeError) as error:
            out["unresolved"].append({"peer": str(peer), "error": getattr(error, "strerror", None) or str(error)})
            continue
        out["address"] = out["address"] or source
        break
    if out["address"]:
        out["interface"] = interface_of(out["address"])
    return out


def interface_of(address):
    """The interface that holds an address, or None. IPv4 by ioctl (also aliases, from /proc), IPv6 from /proc."""
    import fcntl

    try:
        raw = socket.inet_pton(socket.AF_INET6, address)
    except OSError:
        raw = None
    if raw is not None:
        wanted = "".join("%02x" % byte for byte in bytearray(raw))
        return next((line.split()[5] for line in _lines("/proc/net/if_inet6") if line.startswith(wanted)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return _by_network(address)


def _by_network(address):
    """The interface whose connected network holds the address: for a second address of an interface."""
    try:
        number = struct.unpack("=I", socket.inet_aton(address))[0]
    except OSError:
        return None
    best = None
    for line in _lines("/proc/net/route")[1:]:
        words = line.split()
        if len(words) > 7 and words[2] == "00000000":
            network, mask = int(words[1], 16), int(words[7], 16)
            if mask and number & mask == network and (best is None or bin(mask).count("1") > best[0]):
                best = (bin(mask).count("1"), words[0])
    if best is None and address.startswith("127."):
        return "lo"
    return best[1] if best else None


def _lines(path):
    try:
        with open(path) as handle:
            return handle.read().splitlines()
    except OSError:
        return []


def _cores():
    cores = set()
    for folder in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology"):
        ids = [(_lines(os.path.join(folder, name)) or [""])[0] for name in ("physical_package_id", "core_id")]
        cores.add(tuple(ids))
    nodes = len(glob.glob("/sys/devices/system/node/node[0-9]*"))
    return len(cores) or None, nodes or None


def manifest(folder):
    """Digest over a model's small files, and over names and sizes of its weights; None when there is no folder."""
    if not os.path.isdir(folder):
        return None
    small, weights = hashlib.sha256(), hashlib.sha256()
    count = 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        size = os.path.getsize(path)
        if name.endswith(_SMALL) and size <= _SMALL_LIMIT:
            with open(path, "rb") as handle:
                small.update(("%s %s\n" % (name, hashlib.sha256(handle.read()).hexdigest())).encode("utf-8"))
        elif name.endswith((".safetensors", ".bin", ".gguf")):
            weights.update(("%s %d\n" % (name, size)).encode("utf-8"))
            count += 1
    template = os.path.join(folder, "chat_template.jinja")
    return {"files": small.hexdigest(), "weights": weights.hexdigest(), "shards": count,
            "template": _digest(template) if os.path.isfile(template) else None}


def _digest(path):
    with open(path, "rb") as handle:
        return hashlib.sha256(handle.read()).hexdigest()
