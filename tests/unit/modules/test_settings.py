"""Settings of a host: what is wrong, what is changed, what is kept, what comes back."""

import json

import pytest

from bringup.agent.modules import _settings_files, _settings_kernel, host_setting
from bringup.agent.task import Failure, Task

CLUSTER = {"gpu01": "198.18.0.11", "gpu02": "198.18.0.12"}


@pytest.mark.parametrize("before, after", [
    ("127.0.0.1 localhost\n127.0.1.1 gpu01\n198.18.0.12 gpu02\n",
     "127.0.0.1 localhost\n198.18.0.11 gpu01\n198.18.0.12 gpu02\n"),
    ("127.0.0.1 localhost gpu01\n", "127.0.0.1 localhost\n198.18.0.11 gpu01\n198.18.0.12 gpu02\n"),
    ("127.0.0.1 localhost\n127.0.1.1 gpu01.site gpu01 # by the installer\n",
     "127.0.0.1 localhost\n# by the installer\n198.18.0.11 gpu01.site gpu01\n198.18.0.12 gpu02\n"),
    ("127.0.0.1 localhost.localdomain localhost\n127.0.1.1 old gpu01\n",
     "127.0.0.1 localhost.localdomain localhost\n127.0.1.1 old\n198.18.0.11 gpu01\n198.18.0.12 gpu02\n"),
    ("::1 localhost gpu01\n198.18.0.11 gpu01 storage\n",
     "::1 localhost\n198.18.0.11 gpu01 storage\n198.18.0.12 gpu02\n"),
    ("# 127.0.1.1 gpu01\n\n10.0.0.9 other\n",
     "# 127.0.1.1 gpu01\n\n10.0.0.9 other\n198.18.0.11 gpu01\n198.18.0.12 gpu02\n"),
    ("198.18.0.12 gpu01 gpu02\n", "198.18.0.12 gpu02\n198.18.0.11 gpu01\n"),
    ("", "198.18.0.11 gpu01\n198.18.0.12 gpu02\n"),
])
def test_names_go_to_the_cluster_address_and_nothing_else_moves(before, after):
    assert _settings_files.edited(before, CLUSTER) == after
    assert _settings_files.edited(after, CLUSTER) == after


def _names(tmp_path, text):
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/hosts").write_text(text)
    return _settings_files.Names(Task({"addresses": CLUSTER}), str(tmp_path))


def test_names_say_the_line_and_come_back(tmp_path):
    text = "127.0.0.1 localhost\n127.0.1.1 gpu01\n"
    setting = _names(tmp_path, text)
    assert setting.wrong() == ["/etc/hosts:2 says 127.0.1.1 for gpu01, not 198.18.0.11",
                               "/etc/hosts does not name gpu02"]
    kept = setting.before()
    setting.apply()
    assert setting.wrong() == []
    setting.restore(kept)
    assert (tmp_path / "etc/hosts").read_text() == text


def test_names_edited_since_are_not_put_back(tmp_path):
    setting = _names(tmp_path, "127.0.1.1 gpu01\n")
    kept = setting.before()
    setting.apply()
    with (tmp_path / "etc/hosts").open("a") as target:
        target.write("10.0.0.1 mine\n")
    with pytest.raises(Failure, match="edited since"):
        setting.restore(kept)


def test_an_address_that_is_none_is_refused(tmp_path):
    setting = _settings_files.Names(Task({"addresses": {"gpu01": "gpu01.site"}}), str(tmp_path))
    with pytest.raises(Failure, match="the address of gpu01 is none"):
        setting.addresses()


def test_governor_is_set_kept_and_put_back(tmp_path):
    for number, value in enumerate(("powersave", "performance")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(value + "\n")
        (folder / "scaling_available_governors").write_text("performance powersave\n")
    setting = _settings_kernel.Governor(Task({}), str(tmp_path))
    assert setting.missing() is None
    assert setting.wrong() == ["1 of 2 processors run under powersave, not performance"]
    kept = setting.before()
    setting.apply()
    assert setting.wrong() == []
    assert (tmp_path / "etc/tmpfiles.d/90-bringup-governor.conf").read_text().startswith("w /sys/devices/system/cpu/")
    setting.restore(json.loads(json.dumps(kept)))
    assert setting.before() == kept
    with pytest.raises(Failure, match="ondemand is not offered"):
        _settings_kernel.Governor(Task({"value": "ondemand"}), str(tmp_path)).missing()
    assert "no governor" in _settings_kernel.Governor(Task({}), str(tmp_path / "none")).missing()


def test_numa_balancing_now_and_at_boot(tmp_path):
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    knob = tmp_path / "proc/sys/kernel/numa_balancing"
    knob.write_text("1\n")
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.d/50-site.conf").write_text("kernel.numa_balancing = 1\n")
    setting = _settings_kernel.NumaBalancing(Task({}), str(tmp_path))
    assert setting.wrong() == ["kernel.numa_balancing is 1, not 0", "a boot would set kernel.numa_balancing to 1"]
    kept = setting.before()
    setting.apply()
    assert setting.wrong() == []
    setting.restore(kept)
    assert knob.read_text() == "1"
    assert not (tmp_path / setting.file[1:]).exists()


def test_swap_lines_are_marked_and_unmarked(tmp_path):
    (tmp_path / "etc").mkdir()
    table = tmp_path / "etc/fstab"
    text = "UUID=1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n"
    table.write_text(text)
    setting = _settings_kernel.Swap(Task({}), str(tmp_path))
    assert setting.wrong() == ["/etc/fstab brings back swap: /swapfile"]
    kept = setting.before()
    setting.apply()
    assert setting.wrong() == []
    with table.open("a") as target:
        target.write("tmpfs /x tmpfs defaults 0 0\n")
    setting.restore(kept)
    assert table.read_text() == text + "tmpfs /x tmpfs defaults 0 0\n"


class _Knob(_settings_files.Setting):
    """A setting in one file, to see what the module does around it."""

    name = "swap"

    def wrong(self):
        return [] if self.text("/knob") == "good" else [f"the knob is {self.text('/knob')}"]

    def before(self):
        return {"knob": self.text("/knob")}

    def apply(self):
        self.write("/knob", self.task.args.get("value") or "good")

    def restore(self, kept):
        self.write("/knob", kept["knob"])


@pytest.fixture
def knob(tmp_path, monkeypatch):
    path = tmp_path / "knob"
    path.write_text("bad")
    monkeypatch.setitem(host_setting.SETTINGS, "swap", lambda task: _Knob(task, str(tmp_path)))

    def run(check=False, **args):
        return host_setting.run(Task({"name": "swap", "state": "present", **args}, check=check,
                                     root=str(tmp_path / "root")))

    run.path = path
    run.kept = tmp_path / "root/state/host_settings/swap.json"
    return run


def test_the_first_value_is_kept_and_comes_back(knob):
    assert knob(check=True)["changed"] is True
    assert (knob.path.read_text(), knob.kept.exists()) == ("bad", False)
    assert knob()["wrong"] == ["the knob is bad"]
    assert knob()["changed"] is False
    knob.path.write_text("worse")
    assert knob()["changed"] is True
    assert knob(state="restored", check=True)["changed"] is True
    assert knob(state="restored")["before"] == {"knob": "bad"}
    assert knob.path.read_text() == "bad"
    assert knob(state="restored")["changed"] is False


def test_a_setting_that_does_not_take_fails(knob):
    with pytest.raises(Failure, match="did not take and was put back: the knob is odd"):
        knob(value="odd")
    assert knob.path.read_text() == "bad"
    assert not knob.kept.exists()
