"""A run's report as JUnit XML: its tasks and its checks, a suite each."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from bringup.base.results import Status
from bringup.base.verdicts import Verdict


def junit(tree: dict[str, Any]) -> str:
    """The text of the file; `tree` is what `--format json` prints."""
    root = ElementTree.Element("testsuites", name=f"bringup {tree['verb']}")
    _suite(root, "tasks", [(r["host"], r["task"], r["status"], r) for r in tree["results"]], {
        "failed": Status.FAILED.value, "error": (Status.UNREACHABLE.value, Status.LOST.value)})
    _suite(root, "checks", [(f["subject"], f["check"], f["verdict"], f) for f in tree["findings"]], {
        "failed": Verdict.FAIL.value, "error": (Verdict.UNKNOWN.value,)})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, rows: list[tuple[str, str, str, dict[str, Any]]],
           kinds: dict[str, Any]) -> None:
    if not rows:
        return
    suite = ElementTree.SubElement(root, "testsuite", name=name, tests=str(len(rows)))
    totals = {"failures": 0, "errors": 0, "skipped": 0}
    for subject, what, status, row in rows:
        case = ElementTree.SubElement(suite, "testcase", classname=subject, name=what, time=str(row.get("seconds", 0)))
        text = "\n".join(f"{key}: {row[key]}" for key in ("summary", "message", "expected", "found", "required", "mend",
                                                        "next") if row.get(key))
        if status == kinds["failed"] and not row.get("ignored"):
            totals["failures"] += 1
            ElementTree.SubElement(case, "failure", message=_clean(text.split("\n")[0])).text = _clean(text)
        elif status in kinds["error"]:
            totals["errors"] += 1
            ElementTree.SubElement(case, "error", message=_clean(text.split("\n")[0])).text = _clean(text)
        elif status in (Status.SKIPPED.value, Verdict.SKIP.value):
            totals["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=_clean(text.split("\n")[0]))
    for key, value in totals.items():
        suite.set(key, str(value))


def _clean(text: str) -> str:
    return "".join(char for char in text if char in "\t\n" or char >= " ")
