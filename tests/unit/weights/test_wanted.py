"""`weights` of a deployment, read strictly: what is wrong is told with its place before any host is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.yaml import load_file
from bringup.weights.wanted import HUB, Weights, parse_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def read(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Weights:
    path = tmp_path / "site.yml"
    path.write_text(text)
    return parse_weights(load_file(path), None, environ or {})


def test_a_repo_at_a_commit_from_the_hub_with_a_rate(tmp_path: Path) -> None:
    found = read(tmp_path, f"repo: zai-org/GLM-5.1\nrevision: {COMMIT}\nrate: 500 MB/s\nfan_out: 3\n")
    assert found == Weights("zai-org/GLM-5.1", COMMIT, (HUB,), rate=500_000_000, fan_out=3)
    assert found.fetched and found.upstream() == {"kind": "hub", "endpoints": [HUB], "repo": "zai-org/GLM-5.1",
                                                  "revision": COMMIT}


def test_a_mirror_is_the_endpoint_and_the_environment_names_one(tmp_path: Path) -> None:
    text = f"repo: a/b\nrevision: {COMMIT}\n"
    assert read(tmp_path, text, {"HF_ENDPOINT": "https://mirror.example"}).endpoints == ("https://mirror.example",)
    both = read(tmp_path, text + "endpoints: [https://one.example/, https://two.example]\nendpoint: https://three\n")
    assert both.endpoints == ("https://one.example", "https://two.example", "https://three")


@pytest.mark.parametrize(("rate", "found"), [("10 Gbit/s", 1_250_000_000), ("1GiB/s", 1 << 30), ("2000000", 2_000_000),
                                             ("1.5 MB", 1_500_000), ("100Mbps", None), ("100 Mbit", 12_500_000),
                                             ("fast", None), ("0", None), ("1..5 MB", None), (".", None)])
def test_a_rate_is_read_with_its_unit_or_refused(tmp_path: Path, rate: str, found: int | None) -> None:
    text = f"path: /mnt/models\nrate: '{rate}'\n"
    if found is None:
        with pytest.raises(InputError, match="rate"):
            read(tmp_path, text)
    else:
        assert read(tmp_path, text).rate == found


@pytest.mark.parametrize(("text", "line", "words"), [
    ("repo: a/b\nrevision: main\n", 2, "no commit"),
    ("repo: a/b\n", 1, "without a revision"),
    ("repo: just-a-name\nrevision: " + COMMIT, 1, "owner/name"),
    ("repo: a/b\npath: /x\nrevision: " + COMMIT, 2, "a repo and a path"),
    ("path: models/x\n", 1, "a folder on the host"),
    ("repo: a/b\nrevison: " + COMMIT, 2, "no key `revison`"),
    ("path: /x\nfan_out: 0\n", 2, "from 1 to 64"),
    ("path: /x\nendpoint: mirror.example\n", 2, "an address"),
    ("path: /x\nendpoints: https://mirror.example\n", 2, "takes a list"),
    ("path: [/x]\n", 1, "takes a text"),
])
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert words in caught.value.what
    assert caught.value.where is not None and f":{line}" in str(caught.value.where)


def test_a_branch_is_refused_with_where_its_commit_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, "repo: a/b\nrevision: main\nendpoint: https://mirror.example\n")
    assert caught.value.next == "read `sha` in https://mirror.example/api/models/a/b/revision/main"


def test_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="takes a mapping"):
        parse_weights("zai-org/GLM-5.1", None, {})
