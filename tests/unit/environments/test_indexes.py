"""What of the controller's package settings travels to hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER
from bringup.environments.indexes import package_settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}


def test_only_the_list_travels(home: dict[str, str]) -> None:
    got = package_settings(None, {**home, "UV_DEFAULT_INDEX": "https://a.example", "UV_CACHE_DIR": "/x",
                                  "HTTPS_PROXY": "http://p.example:3128", "PYTHONPATH": "/evil", "AWS_SECRET": "s"})
    got.pop("SSL_CERT_FILE", None)
    assert got == {"UV_DEFAULT_INDEX": "https://a.example", "HTTPS_PROXY": "http://p.example:3128"}


def test_pips_variables_and_files_count_where_uv_has_none(home: dict[str, str]) -> None:
    assert package_settings(None, {**home, "PIP_INDEX_URL": "https://pip.example", "PIP_CERT": "/ca.pem"}) == {
        "UV_DEFAULT_INDEX": "https://pip.example", "SSL_CERT_FILE": "/ca.pem"}
    conf = Path(home["XDG_CONFIG_HOME"]) / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nindex-url = https://site.example/simple\n")
    assert package_settings(None, home)["UV_DEFAULT_INDEX"] == "https://site.example/simple"
    both = package_settings(None, {**home, "UV_INDEX_URL": "https://uv.example"})
    assert "UV_DEFAULT_INDEX" not in both and both["UV_INDEX_URL"] == "https://uv.example"


@pytest.mark.parametrize("text", [
    'index-url = "https://toml.example"\n',
    '[[index]]\nname = "x"\nurl = "https://other.example"\n\n[[index]]\nurl = "https://toml.example"\ndefault = true\n',
])
def test_uvs_own_configuration_wins_over_pips(home: dict[str, str], text: str) -> None:
    toml = Path(home["XDG_CONFIG_HOME"]) / "uv" / "uv.toml"
    toml.parent.mkdir(parents=True)
    toml.write_text(text)
    got = package_settings(None, {**home, "PIP_INDEX_URL": "https://pip.example"})
    assert got["UV_DEFAULT_INDEX"] == "https://toml.example"


def test_the_inventory_has_the_last_word_and_passwords_are_learnt(home: dict[str, str]) -> None:
    got = package_settings({"UV_DEFAULT_INDEX": "https://ops:hunter2-h6@inner.example/simple"},
                           {**home, "UV_DEFAULT_INDEX": "https://a.example"})
    assert got["UV_DEFAULT_INDEX"].endswith("inner.example/simple")
    assert "hunter2-h6" not in SCRUBBER.text(f"cannot reach {got['UV_DEFAULT_INDEX']}")
    with pytest.raises(InputError, match="LD_PRELOAD"):
        package_settings({"LD_PRELOAD": "/x.so"}, home)
    with pytest.raises(InputError, match="no mapping"):
        package_settings("https://a.example", home)
