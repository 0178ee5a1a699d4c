from __future__ import annotations

from typing import Any

import pytest

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER, Secret
from bringup.connection import sshargs
from bringup.connection.target import target_of
from bringup.connection.way import server_of


def test_a_host_without_variables() -> None:
    target = target_of("gpu01", {})
    assert (target.address, target.port, target.user, target.connection) == ("gpu01", None, None, "ssh")
    assert (target.root, target.ssh_config, target.host_key_checking) == ("/opt/bringup", "", "strict")


def test_the_variables_that_ansible_knows() -> None:
    target = target_of("gpu01", {
        "ansible_host": "198.18.0.11", "ansible_port": "2222", "ansible_user": "ops", "ansible_password": "hunter2222",
        "ansible_ssh_private_key_file": "~/k", "ansible_ssh_common_args": "-J bastion -o ConnectTimeout=3",
        "ansible_ssh_extra_args": "-o StrictHostKeyChecking=accept-new", "ansible_become_pass": "root-secret",
        "ansible_python_interpreter": "/usr/bin/python3.9", "bringup_root": "/srv/bringup/"})
    assert (target.address, target.port, target.user, target.key_file) == ("198.18.0.11", 2222, "ops", "~/k")
    assert target.password == "hunter2222" and "hunter2222" not in repr(target)
    assert target.become_password is not None and target.become_password.reveal() == "root-secret"
    assert SCRUBBER.text("x root-secret y") == "x ******** y"
    assert (target.python, target.root) == ("/usr/bin/python3.9", "/srv/bringup")
    assert target.host_key_checking == "accept-new"
    args = sshargs.parse(target.ssh_common_args)
    assert args.options == {"proxyjump": "bastion", "connecttimeout": "3", "stricthostkeychecking": "accept-new"}


@pytest.mark.parametrize(("variables", "expected"), [
    ({"ansible_host_key_checking": False}, "off"), ({"ansible_host_key_checking": True}, "strict"),
    ({"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}, "off"),
    ({"bringup_host_key_checking": "strict", "ansible_ssh_common_args": "-oStrictHostKeyChecking=no"}, "strict"),
])
def test_host_key_checking(variables: dict[str, Any], expected: str) -> None:
    assert target_of("h", variables).host_key_checking == expected


def test_passwords_of_the_command_line_come_second() -> None:
    asked = Secret("asked-for-it")
    assert target_of("h", {}, become_password=asked, ssh_password=asked).become_password == asked
    own = target_of("h", {"ansible_become_password": "its-own-one"}, become_password=asked)
    assert own.become_password == "its-own-one"


def test_no_ssh_config_and_another_one() -> None:
    assert target_of("h", {"bringup_ssh_config": False}).ssh_config is None
    assert target_of("h", {"bringup_ssh_config": "lab/ssh_config"}).ssh_config == "lab/ssh_config"
    assert target_of("h", {"ansible_ssh_common_args": "-F /etc/x"}).ssh_config == "/etc/x"
    assert target_of("h", {"ansible_ssh_common_args": "-F none"}).ssh_config is None


@pytest.mark.parametrize(("variables", "said"), [
    ({"ansible_connection": "winrm"}, "ssh or local"), ({"ansible_port": "0"}, "1 to 65535"),
    ({"ansible_port": "twentytwo"}, "1 to 65535"), ({"ansible_become_method": "su"}, "sudo"),
    ({"bringup_root": "relative"}, "absolute"), ({"bringup_root": "/"}, "absolute"),
    ({"ansible_host": ["a"]}, "must be a text"), ({"bringup_host_key_checking": "maybe"}, "strict, accept-new or off"),
    ({"ansible_ssh_common_args": "-o Ciphers=3des-cbc"}, "Ciphers"), ({"ansible_ssh_common_args": "-A"}, "-A"),
    ({"ansible_ssh_common_args": "-o ConnectTimeout=soon"}, "number"), ({"ansible_ssh_common_args": "-J"}, "value"),
    ({"ansible_ssh_common_args": "bastion"}, "no option"), ({"ansible_ssh_common_args": "-o 'x"}, "cannot be read"),
    ({"ansible_become_flags": "-i"}, "not supported"),
])
def test_what_is_not_supported_is_refused_with_its_name(variables: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        target_of("gpu01", variables)
    text = str(caught.value)
    assert said in text and "gpu01" in text


def test_arguments_in_all_their_spellings() -> None:
    parsed = sshargs.parse("-p2222 -o ProxyCommand='ssh -W %h:%p gw' -oUser=lin -o 'IdentitiesOnly yes' -i a -i b "
                           "-Cq -4 -o ControlMaster=auto -o ServerAliveInterval=30 -p 9")
    assert parsed.options == {"port": "2222", "proxycommand": "ssh -W %h:%p gw", "user": "lin", "identitiesonly": "yes",
                              "addressfamily": "inet"}
    assert parsed.identities == ("a", "b")


def test_one_setting_for_the_phases_of_connecting() -> None:
    assert target_of("h", {"ansible_ssh_timeout": 30}).timeout == 30
    assert server_of(target_of("h", {"ansible_timeout": "40", "bringup_ssh_config": False})).limit == 40
    args = {"ansible_ssh_timeout": 30, "ansible_ssh_common_args": "-o ConnectTimeout=7", "bringup_ssh_config": False}
    server = server_of(target_of("h", args))
    assert (server.limit, server.tcp) == (7, 7)
    plain = server_of(target_of("h", {"bringup_ssh_config": False}))
    assert (plain.limit, plain.tcp) == (None, 10)
    with pytest.raises(InputError, match="whole seconds"):
        target_of("h", {"ansible_ssh_timeout": "soon"})
