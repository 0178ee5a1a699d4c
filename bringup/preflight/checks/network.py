"""Names, addresses, ways between hosts, packet sizes."""

from __future__ import annotations

import ipaddress
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.base.text import duration
from bringup.preflight.pairs import blame
from bringup.preflight.registry import (
    Outcome,
    View,
    check,
    failed,
    fleet_check,
    noted,
    passed,
    skipped,
    unknown,
    warned,
)
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def loopback_fleet(view: View) -> bool:
    """True where the hosts of the plan are loopback addresses of one machine."""
    return is_loopback(view.need.addresses.get(view.host, ""))


def _where(view: View, name: str) -> str:
    try:
        for line, address, names in view.facts.hosts_file:
            if name in names and is_loopback(address):
                return f"/etc/hosts:{line}        {address} {' '.join(names)}"
    except Unread:
        pass
    return ""


def _resolved(view: View, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = view.facts.names.get("names", {}).get(name, {})
    return found


@fleet_check("net.greeting", "the SSH server of every host greets at once", source=limits()["greeting"].source,
             remedy="UseDNS no in its sshd_config, or mend the reverse DNS of the address that we come from; see the "
                    "load there")
def greeting(views: Sequence[View]) -> Iterable[Outcome]:
    took = {view.host: view.facts.answers.connect for view in views}
    known = {host: one for host, one in took.items() if one is not None}
    limit = limits()["greeting"].number
    for host in took:
        if host not in known:
            yield skipped("not connected by SSH", subject=host)
            continue
        whole, waited = known[host]
        data = {"connect": whole, "greeting": waited}
        if waited < limit:
            yield passed(f"connected in {duration(whole)}", subject=host, data=data)
            continue
        others = [one[1] for name, one in known.items() if name != host]
        beside = f", {duration(statistics.median(others))} on the others" if others else ""
        yield warned(f"connected, the greeting took {duration(waited)}{beside}", subject=host, data=data,
                     required=f"within {duration(limit)}", found=duration(waited))


@check("net.self-name", "the host's own name is no loopback address to itself", reads=("net.names", "net.hosts_file"),
       source="ranks offer each other what their own name resolves to", absent="unknown",
       remedy="put the cluster address before the name in /etc/hosts (role host_names does)")
def self_name(view: View) -> Outcome:
    if loopback_fleet(view):
        return skipped("the hosts are loopback addresses of one machine")
    own = str(view.facts.names.get("hostname", ""))
    names = [name for name in dict.fromkeys((own, view.host)) if name and not is_address(name)]
    address = view.need.addresses.get(view.host, "")
    mend = (f"put {address or 'the cluster address'} {own or view.host} there, or provision with role host_names; "
            "or set cluster_address and GLOO_SOCKET_IFNAME")
    many = len(view.need.addresses) > 1
    for name in names:
        found = _resolved(view, name)
        addresses = [str(one) for one in found.get("addresses", [])]
        # a name that only the inventory knows need not resolve on the host itself
        if not addresses and name == own:
            text = f"{name} does not resolve on itself: {found.get('error', 'no answer')}"
            return (failed if many else warned)(text, mend=mend)
        if addresses and all(is_loopback(one) for one in addresses):
            where = _where(view, name)
            text = f"{name} resolves to {addresses[0]} on itself: ranks would dial themselves"
            alone = not view.need.multi_node and (view.need.deployed or not many)
            if alone:
                return passed(f"{name} is {addresses[0]}; no other host is dialled")
            return failed(text, details=(where,) if where else (), mend=mend)
        slow = float(found.get("seconds", 0) or 0)
        if slow > 2:
            return warned(f"{name} took {slow:.1f} s to resolve: a name server does not answer")
    shown = _resolved(view, own).get("addresses", ["?"])
    return passed(f"{own} is {shown[0] if shown else '?'}")


@check("net.names", "every other host's name resolves, to an address that is not loopback", reads=("net.names",),
       source="ranks find each other by name where no address is given", absent="unknown",
       remedy="role host_names writes all of them into /etc/hosts")
def names(view: View) -> Outcome:
    others = {name: address for name, address in view.need.addresses.items()
              if name != view.host and not is_address(name)}
    if not others:
        return skipped("no other host")
    if loopback_fleet(view):
        return skipped("the hosts are loopback addresses of one machine")
    lost, wrong, looped = [], [], []
    for name, address in others.items():
        found = [str(one) for one in _resolved(view, name).get("addresses", [])]
        if not found:
            lost.append(name)
        elif any(is_loopback(one) for one in found):
            looped.append(f"{name} is {found[0]}")
        elif is_address(address) and address not in found:
            wrong.append(f"{name} is {found[0]} here, {address} in the inventory")
    from bringup.base.text import fold_hosts

    if looped:
        return failed(f"{looped[0]}: another host's name is loopback here")
    if lost and any(not is_address(others[name]) for name in lost):
        return failed(f"cannot resolve {fold_hosts(lost)}", details=("and the inventory gives no address for it",))
    if wrong:
        return noted(wrong[0] + (f" and {len(wrong) - 1} more" if wrong[1:] else ""),
                     details=("the inventory's address is the one that is used",))
    if lost:
        return noted(f"{len(lost)} of {len(others)} other names do not resolve; the inventory's addresses are used",
                     details=(fold_hosts(lost),) if len(lost) < len(others) else ())
    return passed(f"{len(others)} names")


@check("net.address", "the address that the others use is on an interface of the host", reads=("net.addresses",),
       source="the plan: rendezvous and peers", remedy="cluster_address: the host's address on the cluster network")
def address(view: View) -> Outcome:
    own = view.need.addresses.get(view.host, "")
    if not is_address(own):
        return skipped("the inventory gives a name")
    if is_loopback(own):
        return skipped("a loopback address")
    text = view.facts.answers.text("net.addresses")
    present = {word.split("/")[0] for line in text.splitlines() for word in line.split()}
    if own in present:
        return passed(own)
    text = f"{own} is on no interface: a translated or floating address"
    return (warned if view.need.multi_node else noted)(text)


@check("net.interfaces", "the interfaces that the plan's variables name are there", reads=("net.links",),
       source="NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, HCCL_SOCKET_IFNAME", remedy="name an interface that is there")
def interfaces(view: View) -> Outcome:
    # `$IFACE_NAME` in a plan is worked out on the host when the release is made
    wanted = {name: value for name, value in view.need.env.items()
              if name.endswith("SOCKET_IFNAME") and value and not value.startswith("$")}
    if not wanted:
        return skipped("the plan names none")
    there = set(view.facts.link_mtu)
    for name, value in wanted.items():
        exact = value.startswith("=")
        for one in value.lstrip("=^").split(","):
            fits = one in there if exact or name.startswith("GLOO") else any(link.startswith(one) for link in there)
            if value.startswith("^"):
                continue
            if not fits:
                return failed(f"{name}={value}: no interface `{one}` (there: {', '.join(sorted(there))})")
    return passed(", ".join(sorted(set(wanted.values()))))


def _pairs(views: Sequence[View]) -> Iterable[tuple[View, str, Mapping[str, Any]]]:
    known = {view.host for view in views}
    for view in views:
        try:
            found = view.facts.reach
        except Unread:
            continue
        for peer, one in found.items():
            if peer in known and peer != view.host:
                yield view, peer, one


@fleet_check("net.reach", "every host reaches every other", reads=("net.reach",), source="the plan's addresses",
             remedy="look at routes and firewalls between the two")
def reach(views: Sequence[View]) -> Iterable[Outcome]:
    silent, answered = [], 0
    for view, peer, one in _pairs(views):
        pair = f"{view.host} > {peer}"
        if one.get("error"):
            yield failed(f"no way to {one.get('address')}: {one['error']}", subject=pair)
        elif one.get("ping") == "passes" or one.get("small") == "passes" or one.get("ping") == "too long":
            answered += 1
            yield passed("answers", subject=pair)
        elif str(one.get("ping", "")).startswith(("no ping", "cannot ask")):
            yield skipped(str(one["ping"]), subject=pair)
        else:
            silent.append(pair)
    for pair in silent:
        # where nobody answers, a firewall drops pings: that says nothing about the way
        yield (failed if answered else noted)("no answer to a ping", subject=pair)


@fleet_check("net.mtu", "all hosts use one packet size, and it passes between every pair", reads=("net.reach",),
             source="small messages pass and large ones hang", remedy="one MTU on interfaces, bonds and switch ports")
def mtu(views: Sequence[View]) -> Iterable[Outcome]:
    own: dict[str, int] = {}
    broken: list[tuple[str, str, int]] = []
    for view, peer, one in _pairs(views):
        size = int(one.get("mtu") or 0)
        if not size or is_loopback(str(one.get("address", ""))):
            continue
        own[view.host] = max(own.get(view.host, 0), size)
        if one.get("ping") == "too long" or (one.get("ping") == "no answer" and one.get("small") == "passes"):
            broken.append((view.host, peer, size))
    if not own:
        return
    values = list(own.values())
    usual = max(sorted(set(values), reverse=True), key=values.count)
    multi = any(view.need.multi_node for view in views) or not any(view.need.deployed for view in views)
    for host, size in own.items():
        if size != usual:
            make = failed if multi else warned
            yield make(f"MTU {size}, the others have {usual}", subject=host,
                       mend="ip link set dev IF mtu " + str(usual) + " on the interface and its bond")
        else:
            yield passed(f"MTU {size}", subject=host)
    odd = {host for host, size in own.items() if size != usual}
    sizes = {(host, peer): size for host, peer, size in broken if host not in odd and peer not in odd}
    asked = [(view.host, peer) for view, peer, _ in _pairs(views) if view.host not in odd and peer not in odd]
    hosts, pairs = blame(list(sizes), asked)
    for host in hosts:
        mine = [pair for pair in sizes if host in pair]
        size = sizes[mine[0]]
        yield failed(f"packets of {size} do not pass to or from this host, {_smaller(size)} do", subject=host,
                     details=("between the others they pass",),
                     mend=f"the MTU of its switch port, bridge or bond: {size} is set on the host itself")
    for host, peer in pairs:
        size = sizes[(host, peer)]
        yield failed(f"{size} does not pass, {_smaller(size)} does", subject=f"{host} > {peer}",
                     details=("in both directions",) if (peer, host) in sizes else ())


def _smaller(size: int) -> str:
    """What is asked when a full packet does not pass."""
    return "1500" if size > 1500 else "84"


@fleet_check("net.ports", "the ports that the plan binds can be reached from every host of the replica", tier="deep",
             reads=("net.meet",), source="a firewall between hosts; listeners of ours on free ports, for seconds",
             remedy="open these ports between the hosts of the cluster network")
def ports(views: Sequence[View]) -> Iterable[Outcome]:
    listens: dict[str, Mapping[str, Any]] = {}
    for view in views:
        try:
            listens[view.host] = view.facts.meet.get("listen", {})
        except Unread:
            continue
    for view in views:
        if view.host not in listens:
            continue
        closed: dict[str, list[str]] = {}
        for key, came in view.facts.meet.get("connect", {}).items():
            peer, _, port = key.rpartition(":")
            if came != "connects" and listens.get(peer, {}).get(port) == "listens":
                closed.setdefault(peer, []).append(f"{port} ({came})")
        for peer in {key.rpartition(":")[0] for key in view.facts.meet.get("connect", {})}:
            if peer in closed:
                yield failed(f"{', '.join(closed[peer])} cannot be reached", subject=f"{view.host} > {peer}")
            else:
                yield passed("all", subject=f"{view.host} > {peer}")


@check("net.proxy", "hosts of the cluster are reached without the proxy", reads=("net.proxy",),
       source="a proxy that gets the rendezvous ends the start", remedy="add the cluster's addresses to no_proxy")
def proxy(view: View) -> Outcome:
    session = dict(view.facts.proxy.get("session", {}))
    used = session.get("http_proxy") or session.get("https_proxy") or session.get("all_proxy")
    if not used:
        files = [path for path, values in view.facts.proxy.get("files", {}).items()
                 if any(name != "no_proxy" for name in values)]
        if files:
            return noted(f"{files[0]} sets a proxy that a session without login does not have",
                         mend="set the proxy in the inventory: `environment` of the play")
        return passed("none")
    spared = [part.strip() for part in session.get("no_proxy", "").split(",") if part.strip()]
    bare = [address for name, address in view.need.addresses.items()
            if name != view.host and not is_loopback(address) and not _spared(address, spared)]
    if bare:
        return failed(f"{used} would get the calls to {bare[0]}" + (f" and {len(bare) - 1} more" if bare[1:] else ""))
    return passed("the cluster is spared")


def _spared(address: str, words: Sequence[str]) -> bool:
    for word in words:
        if word == "*" or address == word or address.endswith("." + word.lstrip(".")):
            return True
        try:
            if ipaddress.ip_address(address) in ipaddress.ip_network(word, strict=False):
                return True
        except ValueError:
            continue
    return False


_STAGES = {
    "dns": ("its name is not found", "a name server that knows it, or a proxy: `environment` of the play"),
    "connect": ("it cannot be reached", "open the way to it, or set the proxy: `environment` of the play"),
    "proxy": ("the proxy refuses", "let the proxy pass it, or name a mirror in the inventory"),
    "tls": ("TLS fails", "add the authority's certificate to the system's store (and SSL_CERT_FILE for uv and pip)"),
    "http": ("it answers otherwise", "look at the address in bringup_urls"),
    "address": ("is no address", "look at bringup_urls"),
}
"""Where a way may end, in the order of the way: what that means and what mends it."""


@check("net.fetch", "every address that the host downloads from answers", reads=("net.fetch",), source="bringup_urls",
       remedy="or take an offline bundle: invoke bundle")
def fetch(view: View) -> list[Outcome]:
    if not view.need.urls:
        return [skipped("the inventory names no address (bringup_urls)")]
    out: list[Outcome] = []
    for url in view.need.urls:
        one = view.facts.fetched.get(url)
        if one is None:
            out.append(unknown(f"{url} was not asked for"))
            continue
        if one["stage"] == "done":
            continue
        if one["stage"] not in _STAGES:
            out.append(unknown(f"{url}: `{one['stage']}` is no stage of the way"))
            continue
        words, mend = _STAGES[one["stage"]]
        by = f" by the proxy {one['by']}" if one.get("by") else ""
        out.append(failed(f"{url}: {words}{by}: {one.get('error', '')}", found=f"ends at {one['stage']}",
                          required="an answer", mend=mend))
    return out or [passed(f"{len(view.need.urls)} answer")]


@check("net.exposed", "ports that only the ranks use do not answer outside of the cluster network",
       reads=("net.listeners", "net.addresses"),
       source="rendezvous and engine ports take commands from whoever connects",
       remedy="a firewall rule for these ports, or cluster_address on an interface of its own")
def exposed(view: View) -> Outcome:
    inner = {port for port, what in view.need.ports.items() if what != "HTTP"}
    own = view.need.addresses.get(view.host, "")
    if not inner or not is_address(own) or is_loopback(own):
        return skipped("the plan names no inner port" if not inner else "the host is known by a name or on loopback")
    wide = sorted({one.port for one in view.facts.listeners
                   if one.port in inner and one.address in ("0.0.0.0", "::", "*")})
    if not wide:
        return passed("none listens on every address")
    cluster = None
    others: list[str] = []
    for word in re.findall(r"\binet6? (\S+)", view.facts.answers.text("net.addresses")):
        try:
            interface = ipaddress.ip_interface(word)
        except ValueError:
            continue
        if str(interface.ip) == own:
            cluster = interface.network
        elif interface.is_global:
            others.append(word)
    others = [word for word in others if cluster is None or ipaddress.ip_interface(word).ip not in cluster]
    shown = ", ".join(str(port) for port in wide)
    if others:
        return warned(f"{shown} on every address, {others[0].split('/')[0]} among them: a public one")
    return passed(f"{shown} on every address, none of them public")


@fleet_check("net.unique", "no two hosts use one address", source="the inventory",
             remedy="give each host its own address")
def unique(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, list[str]] = {}
    ports = {}
    for view in views:
        address = view.need.addresses.get(view.host, "")
        ports[view.host] = address
        if address and not is_loopback(address):
            seen.setdefault(address, []).append(view.host)
    for address, hosts in seen.items():
        for host in hosts:
            if len(hosts) > 1:
                yield failed(f"{address} is also {', '.join(other for other in hosts if other != host)}", subject=host)
            else:
                yield passed(address, subject=host)
