"""The report: worst first, equal findings in one line, widths, JSON."""

from __future__ import annotations

import json

from preflight_hosts import bad, change, edit, findings_of, fleet, healthy, no_driver_match, tree

from bringup.base.verdicts import Finding, Verdict
from bringup.preflight.checks.parity import table
from bringup.preflight.facts import Facts
from bringup.preflight.registry import View
from bringup.preflight.report import as_data, folded, lines, summary


def finding(check: str, subject: str, verdict: Verdict, text: str, **more: object) -> Finding:
    return Finding(check, subject, verdict, text, **more)  # type: ignore[arg-type]


def test_worst_first_and_equal_findings_of_many_hosts_in_one_line() -> None:
    found = [
        finding("nvidia.remap", "gpu11", Verdict.WARN, "GPU 5: one row remapped"),
        *(
            finding(
                "net.self-name",
                f"gpu{n:02d}",
                Verdict.FAIL,
                f"gpu{n:02d} resolves to 127.0.1.1 on itself",
                mend="fix it",
            )
            for n in (1, 2, 3, 4, 5, 6, 8)
        ),
        finding(
            "nvidia.library",
            "gpu07",
            Verdict.FAIL,
            "library 580.178 does not match the loaded module 580.126.09",
            details=("nvidia-smi ends with 18",),
            mend="sudo reboot",
        ),
        finding("net.mtu", "gpu03 > gpu04", Verdict.FAIL, "9000 does not pass, 1500 does"),
        finding("rdma.ports", "gpu01", Verdict.NOTE, "mlx5_0"),
        finding("host.os", "gpu01", Verdict.PASS, "ok"),
        finding("x.y", "gpu01", Verdict.SKIP, "why"),
        finding("a.b", "gpu02", Verdict.UNKNOWN, "not readable"),
    ]
    out = lines(found, width=80)
    words = [line[:4] for line in out if line[:4].strip() and line[:4] in ("FAIL", "UNKN", "WARN", "NOTE")]
    assert words == ["FAIL", "FAIL", "FAIL", "UNKN", "WARN", "NOTE"]
    assert any(line.startswith("FAIL  gpu[01-06,08]") and "net.self-name" in line for line in out)
    assert any("gpu03 > gpu04" in line for line in out)
    assert out[-1].startswith("pass 2 of 13 checks on 9 hosts") or "skip" in " ".join(out[-2:])
    assert all(len(line) <= 80 for line in out), [line for line in out if len(line) > 80]
    assert "mend    sudo reboot" in "\n".join(out)


def test_no_line_is_wider_than_the_screen() -> None:
    answers, needs = fleet(["gpu01", "gpu02", "gpu03"])
    answers["gpu02"] = no_driver_match(answers["gpu02"])
    answers["gpu03"] = tree(
        answers["gpu03"], "net.reach", lambda reach: [one.update(mtu=1500) for one in reach.values()]
    )
    found = findings_of(answers, needs)
    views = [View(Facts(answers[host]), needs[host]) for host in answers]
    for width in (80, 100, 160):
        out = lines(found, {"parity": table(views)}, width=width)
        long = [line for line in out if len(line) > width]
        assert not [line for line in long if " " in line.strip()[: width - 30]], long
    assert len(lines(found, width=160)) <= len(lines(found, width=80))


def test_control_characters_of_a_host_are_made_visible() -> None:
    out = lines([finding("a.b", "gpu01", Verdict.FAIL, "x\x1b[31mred\x07")], width=80)
    assert "\x1b" not in "".join(out) and "\\x1b[31mred\\x07" in "".join(out)


def test_what_is_fine_is_one_line() -> None:
    out = lines(findings_of(healthy()), width=80)
    assert out[-2:][0].startswith("pass ") or out[-1].startswith("pass ")
    assert len(out) <= 5


def test_different_mends_are_not_folded_away() -> None:
    groups = folded(
        [finding("a.b", "gpu01", Verdict.FAIL, "GPU 1 is bad"), finding("a.b", "gpu02", Verdict.FAIL, "GPU 2 is bad")]
    )
    assert len(groups) == 2


def test_a_wide_screen_shows_more_in_a_line_and_never_more_lines() -> None:
    found = [finding("net.names", host, Verdict.WARN, "does not resolve: master.cluster.example, and four more names")
             for host in ("lab-head", "lab-w1", "lab-w2")]
    narrow, wide = lines(found, width=80), lines(found, width=160)
    assert len(wide) <= len(narrow) and max(map(len, narrow)) <= 80
    assert wide[0].startswith("WARN  lab-head,lab-w[1-2] net.names") and wide[0].endswith("four more names")


def test_json_holds_everything() -> None:
    answers = edit(healthy("gpu01"), "nvidia.fabricmanager", lambda text: text.replace("=active", "=failed"))
    found = findings_of(answers)
    data = json.loads(json.dumps(as_data(found, {"parity": [("driver", "1 x 580", "")]})))
    assert data["counts"]["fail"] == 1
    blocked = [one for one in data["findings"] if one["blocks"]]
    assert [one["check"] for one in blocked] == ["fabric.manager"]
    assert blocked[0]["mend"] and blocked[0]["source"]


def test_summary_counts() -> None:
    found = findings_of(change(healthy(), "host.cmdline", files={"/proc/cmdline": "intel_iommu=on\n"}))
    assert len(bad(found)) == 1
    assert "1 warn" in summary(found) and "on 1 host" in summary(found)
