"""The verb that holds the endpoint, or recorded traffic, against the contract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus
from bringup.cli.options import COMMON, Option, Options, verb

if TYPE_CHECKING:
    from bringup.base.verdicts import Finding

_ASKED = ("repeat", "timeout", "times", "approve")
_AT_URL = ("model", "without")


@verb((*COMMON, Option("only", help="checks by id or pattern: tools.*,finish; may be given again", many=True),
       Option("replica", help="only this replica; may be given again", many=True),
       Option("repeat", help="times that the same tool call is asked (3)"),
       Option("times", help="rounds of the whole contract (1); an approved check that fails in one is drift"),
       Option("timeout", help="seconds of silence that an answer may take (120)"),
       Option("approve", False, "make the contract, when all of it passes, part of the release"),
       Option("url", help="ask this endpoint from here instead, http://HOST:PORT; no inventory is read"),
       Option("model", help="with --url: the served name (default: the first that it lists)"),
       Option("without", help="with --url: what it does not promise: tools, reasoning; may be given again", many=True),
       Option("log", help="hold recorded traffic (FILE.jsonl) against the contract instead; no host is contacted")))
def verify(options: Options) -> int:
    """Ask every running endpoint for what clients rely on: tools, reasoning, thinking switches, streams, limits."""
    if options.log:
        return _recorded(options)
    if options.url:
        return _at_url(options)
    from bringup.base.errors import InputError
    from bringup.base.paths import Project
    from bringup.base.text import nearest
    from bringup.cli.preflight import words
    from bringup.cli.running import Reading, run_reading
    from bringup.cli.serve import plan_of
    from bringup.serving.contract.checks import chosen

    for name in _AT_URL:
        if options.values.get(name):
            raise InputError(f"--{name} belongs to --url", next="invoke verify --url http://HOST:PORT")
    only, replicas = words(options.only), words(options.replica)
    chosen(only)
    if options.approve and only:
        raise InputError("--approve takes the whole contract, --only a part of it", next="invoke verify --approve")
    given: dict[str, Any] = {
        "contract_repeat": options.number("repeat", least=1), "contract_timeout": options.number("timeout", least=1),
        "contract_times": options.number("times", least=1), "contract_only": list(only) or None,
        "contract_replicas": list(replicas) or None, "contract_approve": True if options.approve else None}
    extra = {name: value for name, value in given.items() if value is not None}
    reading = Reading(options, Project.find().root / "playbooks" / "verify.yml", extra)
    names = [replica.name for replica in plan_of(reading).replicas] if replicas else []
    for name in replicas:
        if name not in names:
            near = nearest(name, names)
            raise InputError(f"no replica is called `{name}`", expected=", ".join(names),
                             next=f"--replica {near}" if near else "invoke plan shows the replicas")
    return int(run_reading(reading, verb="verify"))


def _recorded(options: Options) -> int:
    from bringup.base.errors import InputError
    from bringup.cli.clients import read
    from bringup.serving.contract.traffic import judge_traffic, read_traffic

    for name in (*_ASKED, *_AT_URL, "only", "replica", "url"):
        if options.values.get(name):
            raise InputError(f"--{name} asks an endpoint, --log reads a file",
                             next=f"invoke verify --log {options.log}")
    path = Path(options.log).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=options.log) from None
    attempts = read_traffic(lines, options.log)
    endpoint, routes = read(options)
    found = judge_traffic(attempts, routes, endpoint.model)
    show(options, "recorded traffic", found)
    return int(ExitStatus.FINDING if any(finding.blocks for finding in found) else ExitStatus.DONE)


def _at_url(options: Options) -> int:
    """Hold an endpoint against the contract whatever runs it, asked from here."""
    import os
    import random

    from bringup.base.errors import InputError
    from bringup.base.secrets import SCRUBBER
    from bringup.cli.preflight import words
    from bringup.gates.direct import Direct, served_name
    from bringup.releases.contract import WORDS
    from bringup.serving.contract.check import Served
    from bringup.serving.contract.checks import chosen
    from bringup.serving.contract.clients import KEY
    from bringup.serving.contract.run import check_contract

    if "://" not in options.url:
        raise InputError("--url takes an address", found=options.url, expected="http://HOST:PORT")
    for name in ("replica", "approve", "times"):
        if options.values.get(name):
            raise InputError(f"--{name} belongs to a deployment of ours, --url asks any endpoint")
    without = words(options.without)
    for name in without:
        if name not in ("tools", "reasoning"):
            raise InputError("--without takes tools or reasoning", found=name)
    checks = chosen(words(options.only))
    key = os.environ.get(KEY)
    if key:
        SCRUBBER.add(key)
    direct = Direct(options.url, key, float(options.number("timeout", least=1) or 120))
    model = options.model or served_name(direct, options.url, f"its key goes into {KEY}; --model names the model")
    served = Served(model, tools="tools" not in without, reasoning="reasoning" not in without, has_key=bool(key),
                    nonce=f"{random.choice(WORDS)}{random.randrange(1000, 10000)}",
                    repeat=options.number("repeat", least=1) or 3, engine="")
    found = check_contract(served, direct, subject=model, checks=checks)
    show(options, "contract", found)
    return int(ExitStatus.FINDING if any(finding.blocks for finding in found) else ExitStatus.DONE)


def show(options: Options, title: str, findings: list[Finding]) -> None:
    """Print findings worst first as text or JSON, and write the reports. Raises StepError."""
    from bringup.base.events import Findings
    from bringup.cli.serve import say
    from bringup.ui.report import Collector, write_report
    from bringup.ui.screen import line_width
    from bringup.ui.wrapping import hung

    collector = Collector()
    collector(Findings(title, tuple(findings)))
    for file in options.report:
        write_report(collector, file)
    if options.format == "json":
        say(collector.json())
        return
    order = {"fail": 0, "unknown": 0, "warn": 1}
    for finding in sorted(findings, key=lambda one: order.get(one.verdict.value, 2)):
        head = f"{finding.verdict.value.upper():5} {finding.subject:14} "
        rows = [finding.summary, *finding.details, *([f"mend    {finding.mend}"] if finding.mend else [])]
        for number, row in enumerate(rows):
            for line in hung(row, line_width() - len(head)):
                say((head if number == 0 else " " * len(head)) + line)
                head = " " * len(head)
