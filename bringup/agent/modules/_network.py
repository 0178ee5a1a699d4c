"""Facts of the network: interfaces, addresses, the way out, resolvers."""

import json
import os

from bringup.agent.modules._facts import text_of
from bringup.agent.task import Failure

_TYPES = {"1": "ether", "772": "loopback", "32": "infiniband", "768": "tunnel", "778": "tunnel"}


def dns(task):
    out = {}
    for line in text_of("/etc/resolv.conf").splitlines():
        words = line.split()
        if len(words) < 2 or line.lstrip().startswith(("#", ";")):
            continue
        if words[0] == "nameserver":
            out.setdefault("nameservers", []).append(words[1])
        elif words[0] in ("search", "sortlist"):
            out[words[0]] = words[1:]
        elif words[0] == "domain":
            out["domain"] = words[1]
        elif words[0] == "options":
            for word in words[1:]:
                key, colon, value = word.partition(":")
                out.setdefault("options", {})[key] = value if colon else True
    return {"dns": out}


def network(task):
    addresses = _addresses(task)
    # /sys may show another network's interfaces in a container; `ip` shows this one's
    names = sorted(addresses) or (sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else [])
    out = {"interfaces": names, "all_ipv4_addresses": [], "all_ipv6_addresses": []}
    for name in names:
        fields = _interface(name, addresses.get(name, {}))
        out[name.replace("-", "_").replace(":", "_").replace(".", "_")] = fields
        for version in ("ipv4", "ipv6"):
            found = fields.get(version, [])
            for entry in (found if isinstance(found, list) else [found]) + fields.get(version + "_secondaries", []):
                if not entry["address"].startswith("127.") and entry["address"] != "::1":
                    out["all_%s_addresses" % version].append(entry["address"])
    for version, flag in (("ipv4", "-4"), ("ipv6", "-6")):
        out["default_" + version] = _default(task, flag, out, version)
    return out


def _json(task, words):
    try:
        done = task.command(["ip", "-j"] + words)
    except Failure:
        return []
    try:
        return json.loads(done.stdout) if done.rc == 0 and done.stdout.strip() else []
    except ValueError:
        return []


def _addresses(task):
    return {entry["ifname"]: entry for entry in _json(task, ["address", "show"]) if entry.get("ifname")}


def _interface(name, entry):
    root = "/sys/class/net/" + name
    kind = entry.get("link_type") or _TYPES.get(text_of(root + "/type"), "unknown")
    out = {"device": name, "mtu": entry.get("mtu") or int(text_of(root + "/mtu") or 0), "type": kind,
           "active": "UP" in entry.get("flags", []) if entry else text_of(root + "/operstate") == "up",
           "macaddress": entry.get("address") or text_of(root + "/address"),
           "promisc": "PROMISC" in entry.get("flags", [])}
    speed = text_of(root + "/speed")
    if speed.lstrip("-").isdigit():
        out["speed"] = int(speed)
    driver = os.path.realpath(root + "/device/driver")
    if os.path.exists(root + "/device/driver"):
        out["module"] = os.path.basename(driver)
    for address in entry.get("addr_info", []):
        if address.get("family") == "inet":
            made = _ipv4(address)
            if "ipv4" not in out:
                out["ipv4"] = made
            else:
                out.setdefault("ipv4_secondaries", []).append(made)
        elif address.get("family") == "inet6":
            out.setdefault("ipv6", []).append({"address": address["local"], "prefix": str(address["prefixlen"]),
                                               "scope": address.get("scope", "")})
    return out


def _ipv4(address):
    prefix = int(address.get("prefixlen", 32))
    mask = (0xFFFFFFFF << (32 - prefix)) & 0xFFFFFFFF
    number = 0
    for part in address["local"].split("."):
        number = number * 256 + int(part)
    return {"address": address["local"], "prefix": str(prefix), "netmask": _dotted(mask),
            "network": _dotted(number & mask), "broadcast": address.get("broadcast", "")}


def _dotted(number):
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def _default(task, flag, facts, version):
    """The interface, address and gateway of the default route."""
    routes = [route for route in _json(task, [flag, "route", "show", "default"]) if route.get("dev")]
    if not routes:
        return {}
    route = min(routes, key=lambda one: one.get("metric", 0))
    name = route["dev"]
    out = {"interface": name, "gateway": route.get("gateway", "")}
    fields = facts.get(name.replace("-", "_").replace(":", "_").replace(".", "_"), {})
    found = fields.get(version)
    if version == "ipv6" and found:
        found = next((one for one in found if one.get("scope") == "global"), found[0])
    if found:
        out.update(found)
        out.update(macaddress=fields.get("macaddress"), mtu=fields.get("mtu"), type=fields.get("type"),
                   alias=name)
    if route.get("prefsrc"):
        out["address"] = route["prefsrc"]
    return out
