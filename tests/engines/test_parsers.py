"""The contract against a real vLLM that was started with the wrong flags: it fails in the right place, by name."""

from __future__ import annotations

from typing import Any

import pytest
from engine_site import EngineSite

pytestmark = [pytest.mark.full, pytest.mark.machines]


def failed(site: EngineSite, **deployment: Any) -> dict[str, dict[str, Any]]:
    """Provision with these values; the contract's findings that are neither pass nor skip."""
    site.write(nodes=1, **deployment)
    site.run("provision", "--yes")
    return {name: one for name, one in site.findings().items() if one["verdict"] == "fail"}


def likely(found: dict[str, dict[str, Any]], check: str) -> str:
    return " ".join(found[f"contract.{check}"]["details"])


def test_without_the_flags_tools_are_refused_and_thinking_stays_in_the_content(site: EngineSite) -> None:
    """The process that runs was started without what the deployment promises by now."""
    failed(site, features=[])
    site.write(nodes=1)
    found = {name: one for name, one in site.findings().items() if one["verdict"] == "fail"}
    assert "--enable-auto-tool-choice" in likely(found, "tools.structured")
    assert "--reasoning-parser is missing" in likely(found, "thinking.on")
    assert "contract.models.served" not in found


def test_hermes_does_not_read_glms_calls(site: EngineSite) -> None:
    found = failed(site, arguments=["--tool-call-parser", "hermes"])
    assert "--tool-call-parser hermes" in likely(found, "tools.structured")
    assert not {name for name in found if "thinking" in name}, "reasoning is another parser's"


def test_deepseek_r1_takes_an_answer_without_thinking_for_thinking(site: EngineSite) -> None:
    found = failed(site, arguments=["--reasoning-parser", "deepseek_r1"])
    assert "--reasoning-parser deepseek_r1" in likely(found, "thinking.off")
    assert "contract.tools.structured" not in found


def test_an_unknown_parser_is_named_before_anything_loads(site: EngineSite) -> None:
    site.write(nodes=1, arguments=["--tool-call-parser", "glm99"])
    done = site.run("provision", "--yes")
    assert done.returncode == 2 and "glm47" in done.stdout, done.stdout
    site.write(nodes=1, arguments=["--tool-call-parser", "no_such_parser"])
    done = site.run("provision", "--yes")
    assert done.returncode == 1, done.stdout
    assert "no_such_parser" in done.stdout and "parser" in done.stdout.split("| cause ", 1)[1], done.stdout
