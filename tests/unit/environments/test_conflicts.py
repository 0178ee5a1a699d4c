"""Requirements that cannot hold together, told by ranges and files; the resolver's texts are recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.environments.conflicts import conflict, refusal, refuse_clashes
from bringup.environments.requirements import Wanted, disjoint, read_requirements

RECORDED = (Path(__file__).parent / "data" / "resolver_messages.txt").read_text()


def recorded(*requirements: str) -> tuple[str, list[Wanted]]:
    """The resolver's words for these requirements, and the requirements with lines."""
    head = "## requirements:\n" + "".join(f"#   {item}\n" for item in requirements)
    text = RECORDED[RECORDED.index(head) + len(head):].split("\n## ")[0]
    return text, [Wanted(Requirement(item), Origin("r.in", number)) for number, item in enumerate(requirements, 1)]


@pytest.mark.parametrize(("requirements", "package", "ranges"), [
    (("transformers==5.3.0", "sglang-kt==0.5.3"), "transformers", {"==4.57.1", "==5.3.0"}),
    (("vllm==0.24.0", "transformers==5.3.0"), "transformers", {">=5.5.3", "==5.3.0"}),
    (("vllm-ascend==0.18.0", "vllm==0.18.0"), "torchvision", {"==0.25.0", "==0.24.0"}),
    (("vllm-ascend==0.13.0", "vllm==0.13.0"), "torch", {"==2.9.0", "==2.8.0"}),
    (("transformers==5.3.0", "sglang-kt==0.7.2", "vllm==0.24.0", "kt-kernel"), "quack-kernels",
     {">=0.3.3", "==0.2.4"}),
])
def test_the_two_demands_are_found_in_the_resolvers_words(requirements: tuple[str, ...], package: str,
                                                         ranges: set[str]) -> None:
    said, wanted = recorded(*requirements)
    pair = conflict(said, wanted)
    assert pair is not None
    assert {pair[0].name, pair[1].name} == {package} and {pair[0].range, pair[1].range} == ranges
    told = str(refusal(said, wanted))
    assert "r.in:" in told and package in told and "No solution found" in told
    assert told.index("cannot hold together") < told.index("No solution found")


def test_a_refusal_without_two_demands_still_shows_the_words() -> None:
    said, wanted = recorded("vllm-ascend==0.23.0")
    assert conflict(said, wanted) is None
    assert "triton-ascend==3.2.2" in str(refusal(said, wanted))


@pytest.mark.parametrize(("first", "second", "expected"), [
    (">=5.3.0", "==4.57.1", True), (">=5.3", "<5.3", True), (">=5.3,<6", ">=5.9", False), ("==5.3.*", "==5.3.1", False),
    ("~=2.1", ">=3", True), ("~=2.1", ">2.5,<2.7", False), (">1,<1.1", ">1.2", True), ("<2", ">=2", True),
    ("<=2", ">=2", False), ("!=2", "==2", True), ("", "==1", False), (">1.0", "<1.1", False), ("<1", ">0.9", False),
])
def test_ranges_that_share_no_version(first: str, second: str, expected: bool) -> None:
    assert disjoint(SpecifierSet(first), SpecifierSet(second)) is expected
    assert disjoint(SpecifierSet(second), SpecifierSet(first)) is expected


def test_two_files_that_clash_are_refused_with_both_lines(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("transformers>=5.3.0\n")
    (tmp_path / "server.txt").write_text("# a server\ndemo-server==1.0\ntransformers==4.57.1\n")
    wanted = read_requirements([tmp_path / "model.txt", tmp_path / "server.txt"], tmp_path)
    with pytest.raises(InputError) as caught:
        refuse_clashes(wanted)
    told = str(caught.value)
    for part in ("model.txt:1", "server.txt:3", "transformers>=5.3.0", "transformers==4.57.1"):
        assert part in told


def test_requirements_are_read_with_includes_and_refuse_options(tmp_path: Path) -> None:
    (tmp_path / "a.in").write_text("-r b.in\nalpha[x]>=1 ; python_version > '3.8'  # why\n\n")
    (tmp_path / "b.in").write_text("beta==2\n-r a.in\n")
    found = read_requirements([tmp_path / "a.in"], tmp_path)
    assert [(item.name, str(item.origin)) for item in found] == [("alpha", "a.in:2"), ("beta", "b.in:1")]
    (tmp_path / "c.in").write_text("beta==2\n--index-url https://index.example\n")
    with pytest.raises(InputError, match=r"c\.in:2"):
        read_requirements([tmp_path / "c.in"], tmp_path)
    (tmp_path / "d.in").write_text("-r missing.in\n")
    with pytest.raises(InputError, match=r"d\.in:1"):
        read_requirements([tmp_path / "d.in"], tmp_path)
