"""Situations from the field: names, packet sizes, proxies. The neighbours stay clean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from preflight_cases import state
from preflight_hosts import (
    by_check,
    change,
    edit,
    findings_of,
    healthy,
    planned,
    tree,
)

from bringup.base.verdicts import Verdict
from bringup.preflight.action import views_of
from bringup.preflight.checks.parity import table
from bringup.preflight.requirement import Need


def names_of(files: dict[str, str], own: str, others: dict[str, str]) -> str:
    """What a host with this /etc/hosts and no name server resolves."""
    found: dict[str, list[str]] = {}
    for line in files.get("/etc/hosts", "").splitlines():
        address, *names = line.split()
        for name in names:
            found.setdefault(name, []).append(address)
    return json.dumps(
        {
            "hostname": own,
            "names": {
                name: {
                    "addresses": found.get(name, []),
                    "seconds": 0.0,
                    **({} if name in found else {"error": "not known"}),
                }
                for name in (own, *others)
            },
        }
    )


def test_c011_own_name_on_loopback() -> None:
    hosts = state("C011")["hosts"]
    addresses = dict.fromkeys(hosts, "")
    needs = {host: Need(addresses={name: name for name in hosts}) for host in hosts}
    answers = {}
    for host, one in hosts.items():
        recorded = change(healthy(host), "net.hosts_file", files=one["files"])
        answers[host] = change(recorded, "net.names", names_of(one["files"], host, addresses))
    found = findings_of(answers, needs)
    own = {finding.subject: finding for finding in by_check(found, "net.self-name")}
    assert [own[host].verdict for host in hosts] == [Verdict.FAIL] * 3
    assert "/etc/hosts:2" in own["h200-01"].details[0] and "127.0.1.1" in own["h200-01"].summary
    assert "/etc/hosts:2" in own["h200-02"].details[0] and "::1" in own["h200-02"].summary
    assert "does not resolve" in own["h200-03"].summary
    assert "GLOO_SOCKET_IFNAME" in str(own["h200-01"].mend)
    others = {finding.subject: finding for finding in by_check(found, "net.names")}
    assert others["h200-03"].verdict is Verdict.FAIL and "h200-[01-02]" in others["h200-03"].summary


def test_c065_a_server_that_greets_late_is_told_from_its_neighbours() -> None:
    hosts = state("C065")["hosts"]
    answers = {}
    for host, one in hosts.items():
        if one["greets_after_s"] != "never":  # that one is unreachable: it has no answers
            waited = float(one["greets_after_s"])
            answers[host] = replace(healthy(host), connect=(waited + 0.2, waited))
    found = findings_of(answers)
    assert {finding.subject: finding.verdict for finding in by_check(found, "net.greeting")} == {
        "slow-01": Verdict.WARN, "jump": Verdict.PASS, "slow-02": Verdict.WARN}
    slow = next(finding for finding in by_check(found, "net.greeting") if finding.subject == "slow-01")
    assert slow.summary == "connected, the greeting took 20 s, 10 s on the others"
    assert "UseDNS no" in str(slow.mend) and not slow.blocks
    rows = {row[0]: row[1:] for row in table(views_of(answers, dict.fromkeys(answers, Need()), list(answers)))}
    assert rows["connect"] == ("1 in 0.2 s", "slow-01: 20.2 s; slow-02: 20.2 s")


def test_c061_mtu_of_an_interface_and_of_a_path() -> None:
    names = list(state("C061")["hosts"])
    needs = planned(names)
    addresses = dict(next(iter(needs.values())).addresses)
    answers = {host: healthy(host, addresses) for host in names}

    def set_mtu(reach: dict[str, Any]) -> None:
        for one in reach.values():
            one["mtu"] = 1500

    answers["h200-02"] = tree(answers["h200-02"], "net.reach", set_mtu)
    answers["h200-02"] = edit(
        answers["h200-02"], "rdma.devinfo", lambda text: text.replace("4096 (5)\n\t\t\tlink", "1024 (3)\n\t\t\tlink")
    )
    answers["h200-03"] = tree(
        answers["h200-03"], "net.reach", lambda reach: reach["h200-01"].update(ping="no answer", small="passes")
    )
    found = findings_of(answers, needs)
    mtu = {f.subject: f for f in by_check(found, "net.mtu") if f.verdict is Verdict.FAIL}
    assert set(mtu) == {"h200-02", "h200-03 > h200-01"}
    assert "MTU 1500, the others have 9000" in mtu["h200-02"].summary
    assert "9000 does not pass, 1500 does" in mtu["h200-03 > h200-01"].summary
    assert {f.subject for f in by_check(found, "rdma.mtu") if f.verdict is Verdict.WARN} == {"h200-02"}


def test_c061_all_at_1500_is_fine() -> None:
    needs = planned(["a1", "a2"])
    addresses = dict(needs["a1"].addresses)
    answers = {
        host: edit(healthy(host, addresses), "net.reach", lambda text: text.replace("9000", "1500")) for host in needs
    }
    assert not [f for f in by_check(findings_of(answers, needs), "net.mtu") if f.verdict is not Verdict.PASS]


def test_c059_a_proxy_that_would_get_the_cluster_s_calls() -> None:
    hosts = state("C059")["hosts"]
    needs = planned(["noproxy-03", "profile-01"])
    addresses = dict(needs["noproxy-03"].addresses)
    answers = {host: healthy(host, addresses) for host in needs}
    one = hosts["noproxy-03"]
    answers["noproxy-03"] = change(
        answers["noproxy-03"],
        "net.proxy",
        json.dumps({"session": {"https_proxy": one["proxy"], "no_proxy": one["no_proxy"]}, "files": {}}),
    )
    answers["profile-01"] = change(
        answers["profile-01"],
        "net.proxy",
        json.dumps({"session": {}, "files": {hosts["profile-01"]["proxy_in"]: {"https_proxy": "http://p:3128"}}}),
    )
    found = {f.subject: f for f in by_check(findings_of(answers, needs), "net.proxy")}
    assert found["noproxy-03"].verdict is Verdict.FAIL and "192.0.2.12" in found["noproxy-03"].summary
    assert found["profile-01"].verdict is Verdict.NOTE and "/etc/profile" in found["profile-01"].summary
    spared = change(
        answers["noproxy-03"],
        "net.proxy",
        json.dumps({"session": {"https_proxy": one["proxy"], "no_proxy": "localhost,192.0.2.0/24"}}),
    )
    assert by_check(findings_of(spared, needs["noproxy-03"]), "net.proxy")[0].verdict is Verdict.PASS


def test_inner_ports_on_a_public_address() -> None:
    """A serving host: the rendezvous port listens everywhere, and one interface has a public address."""
    need = replace(planned(["h1", "h2"])["h1"], ports={8000: "HTTP", 29501: "rendezvous"})
    addresses = dict(need.addresses)
    text = "LISTEN 0 0 {0}:29501 0.0.0.0:*\nLISTEN 0 0 0.0.0.0:8000 0.0.0.0:*\n"
    public = "9: eth9    inet 8.8.4.7/24 scope global eth9\n"
    for listens, more, verdict in (("0.0.0.0", public, Verdict.WARN), ("0.0.0.0", "", Verdict.PASS),
                                   (addresses["h1"], public, Verdict.PASS)):
        answers = change(healthy("h1", addresses), "net.listeners", text.format(listens))
        answers = change(answers, "net.addresses", answers.get("net.addresses").stdout + more)
        found = by_check(findings_of(answers, need), "net.exposed")[0]
        assert found.verdict is verdict, found
        assert not more or verdict is Verdict.PASS or ("29501" in found.summary and "8.8.4.7" in found.summary)
