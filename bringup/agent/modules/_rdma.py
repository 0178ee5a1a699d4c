"""RDMA ports of this host that should carry the model, and the index of their RoCE v2 address. Python 3.6.

Chosen are active ports of the highest rate, and among those the ones that share a PCIe root with an accelerator, when
any does. `sys` is the root of sysfs.
"""

import glob
import os
import re

_ACCELERATORS = ("0x0302", "0x1200", "0x0b40")
"""PCI classes: 3D controller, processing accelerator, co-processor."""
_MAKERS = ("0x10de", "0x1002")
"""A graphics card of these counts as an accelerator too."""


def ports(sys="/sys", wanted=None):
    """(chosen, left out, gid index): chosen are `device:port`, left out (device:port, reason), the index None where
    the ports are InfiniBand or do not agree. `wanted` are names of the inventory: then those that are active."""
    found = _active(sys)
    left = [(name, "not active") for name in _names(sys) if name not in [port["name"] for port in found]]
    if wanted is not None:
        chosen = [port for port in found if port["device"] in wanted or port["name"] in wanted]
        left += [(port["name"], "not in rdma_ports") for port in found if port not in chosen]
    else:
        best = max([port["rate"] for port in found] or [0])
        left += [(port["name"], "%d Gb/s" % port["rate"]) for port in found if port["rate"] < best]
        chosen = [port for port in found if port["rate"] == best]
        roots = _roots_of_accelerators(sys)
        near = [port for port in chosen if port["root"] and port["root"] in roots]
        if near:
            left += [(port["name"], "on no PCIe root of an accelerator") for port in chosen if port not in near]
            chosen = near
    return [port["name"] for port in chosen], left, _gid_index(chosen)


def _names(sys):
    out = []
    for path in sorted(glob.glob(os.path.join(sys, "class/infiniband/*/ports/*"))):
        parts = path.split("/")
        out.append("%s:%s" % (parts[-3], parts[-1]))
    return sorted(out, key=_natural)


def _natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _active(sys):
    out = []
    for name in _names(sys):
        device, port = name.split(":")
        folder = os.path.join(sys, "class/infiniband", device)
        here = os.path.join(folder, "ports", port)
        if "ACTIVE" not in _read(os.path.join(here, "state")):
            continue
        rate = re.match(r"\s*(\d+)", _read(os.path.join(here, "rate")))
        out.append({"name": name, "device": device, "rate": int(rate.group(1)) if rate else 0, "folder": here,
                    "ethernet": _read(os.path.join(here, "link_layer")) == "Ethernet",
                    "root": _root(os.path.join(folder, "device"))})
    return out


def _root(path):
    """The host bridge that a PCI device hangs on: the first part of its path under devices."""
    match = re.search(r"/devices/(pci[0-9a-f]{4}:[0-9a-f]{2})/", os.path.realpath(path))
    return match.group(1) if match else None


def _roots_of_accelerators(sys):
    out = set()
    for path in glob.glob(os.path.join(sys, "bus/pci/devices/*")):
        kind = _read(os.path.join(path, "class"))
        graphics = kind.startswith("0x0300") and _read(os.path.join(path, "vendor")) in _MAKERS
        if kind[:6] in _ACCELERATORS or graphics:
            out.add(_root(path))
    out.discard(None)
    return out


def _gid_index(chosen):
    """The index of the RoCE v2 address that maps an IPv4 address, when it is the same on all chosen ports."""
    found = set()
    for port in chosen:
        if not port["ethernet"]:
            return None
        here = [int(os.path.basename(path)) for path in glob.glob(os.path.join(port["folder"], "gid_attrs/types/*"))
                if _read(path) == "RoCE v2"]
        mapped = [index for index in sorted(here) if _read(os.path.join(port["folder"], "gids", str(index))).startswith(
            "0000:0000:0000:0000:0000:ffff:")]
        found.add(mapped[0] if mapped else None)
    return found.pop() if len(found) == 1 else None


def _read(path):
    try:
        with open(path) as handle:
            return handle.read().strip()
    except (OSError, ValueError):
        return ""
