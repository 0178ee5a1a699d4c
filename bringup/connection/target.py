"""From a host's variables to how it is reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.base.errors import InputError
from bringup.base.paths import DEFAULT_ROOT
from bringup.base.secrets import SCRUBBER, Secret
from bringup.base.yaml import value_origin
from bringup.connection import sshargs
from bringup.connection.messages import Target

_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh")
_LOCAL = ("local", "ansible.builtin.local")


def target_of(host: str, variables: Mapping[str, Any], *, become_password: Secret | None = None,
              ssh_password: Secret | None = None) -> Target:
    """The target that `ansible_*` and `bringup_*` variables describe.

    `become_password` and `ssh_password` are those asked for on the command line; a host's own variables win.
    Raises InputError, before anything is contacted, for a value that is not supported.
    """
    read = _Reader(host, variables)
    connection = _connection(read)
    method = read.text("ansible_become_method") or "sudo"
    if method not in ("sudo", "ansible.builtin.sudo"):
        raise read.refuse("ansible_become_method", "the become method is not supported", "sudo")
    for name, fine in (("ansible_become_exe", ("sudo", "/usr/bin/sudo")), ("ansible_shell_type", ("sh",)),
                       ("ansible_become_flags", ("-H -S", "-H", "-S"))):
        value = read.text(name)
        if value is not None and value not in fine:
            raise read.refuse(name, "this value is not supported", " or ".join(fine[:2]) or None)
    root = read.text("bringup_root") or DEFAULT_ROOT
    if not root.startswith("/") or root == "/":
        raise read.refuse("bringup_root", "must be an absolute path of a folder of its own", DEFAULT_ROOT)
    common = " ".join(filter(None, (read.text("ansible_ssh_common_args"), read.text("ansible_ssh_extra_args"))))
    args = sshargs.parse(common, f"{host}: ansible_ssh_common_args") if connection == "ssh" else sshargs.SshArgs()
    python = read.text("ansible_python_interpreter")
    return Target(
        host=host, connection=connection,
        address=read.text("ansible_host", "ansible_ssh_host") or host,
        port=read.port("ansible_port", "ansible_ssh_port"),
        user=read.text("ansible_user", "ansible_ssh_user"),
        password=read.secret("ansible_password", "ansible_ssh_password", "ansible_ssh_pass") or ssh_password,
        key_file=read.text("ansible_ssh_private_key_file", "ansible_private_key_file"),
        ssh_common_args=common,
        host_key=read.text("bringup_host_key"),
        host_key_checking=_checking(read, args),
        known_hosts=read.text("bringup_known_hosts"),
        ssh_config=_ssh_config(read, args),
        python=None if python is None or python.startswith("auto") else python,
        timeout=read.seconds("ansible_ssh_timeout", "ansible_paramiko_timeout", "ansible_timeout"),
        become_method="sudo",
        become_password=read.secret("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
        or become_password,
        root=root.rstrip("/"),
        environment={str(key): str(value) for key, value in (variables.get("bringup_environment") or {}).items()},
    )


class _Reader:
    def __init__(self, host: str, variables: Mapping[str, Any]) -> None:
        self.host = host
        self.variables = variables

    def text(self, *names: str) -> str | None:
        """The first of these that is set, as text; empty counts as not set."""
        for name in names:
            value = self.variables.get(name)
            if value is None or value == "":
                continue
            if not isinstance(value, (str, int, float, bool)):
                raise self.refuse(name, "must be a text", None)
            return str.__str__(value) if isinstance(value, str) else str(value)
        return None

    def secret(self, *names: str) -> Secret | None:
        value = self.text(*names)
        if value is None:
            return None
        SCRUBBER.add(value)
        return Secret(value)

    def port(self, *names: str) -> int | None:
        for name in names:
            value = self.text(name)
            if value is None:
                continue
            if not value.isdigit() or not 0 < int(value) < 65536:
                raise self.refuse(name, "must be a port", "1 to 65535")
            return int(value)
        return None

    def seconds(self, *names: str) -> int | None:
        for name in names:
            value = self.text(name)
            if value is None:
                continue
            if not value.isdigit() or int(value) < 1:
                raise self.refuse(name, "must be whole seconds", "a number from 1 on")
            return int(value)
        return None

    def refuse(self, name: str, what: str, expected: str | None) -> InputError:
        return InputError(f"{name}: {what}", host=self.host, where=value_origin(self.variables, name),
                          expected=expected, found=str(self.variables.get(name)))


def _connection(read: _Reader) -> str:
    value = read.text("ansible_connection") or "ssh"
    if value in _SSH:
        return "ssh"
    if value in _LOCAL:
        return "local"
    raise read.refuse("ansible_connection", "this connection is not supported", "ssh or local")


def _checking(read: _Reader, args: sshargs.SshArgs) -> str:
    """`bringup_host_key_checking`, else Ansible's variables, else the arguments' StrictHostKeyChecking, else strict."""
    value = read.text("bringup_host_key_checking")
    if value is not None:
        if value not in ("strict", "accept-new", "off"):
            raise read.refuse("bringup_host_key_checking", "this value is not known", "strict, accept-new or off")
        return value
    value = read.text("ansible_ssh_host_key_checking", "ansible_host_key_checking")
    if value is not None and value.lower() in ("false", "no", "0", "off"):
        return "off"
    option = args.options.get("stricthostkeychecking", "").lower()
    return {"no": "off", "off": "off", "accept-new": "accept-new"}.get(option, "strict")


def _ssh_config(read: _Reader, args: sshargs.SshArgs) -> str | None:
    """A file, "" for the user's own and the system's, None for none (and no ssh-agent)."""
    value = read.variables.get("bringup_ssh_config")
    if value is False or (isinstance(value, str) and value.lower() in ("false", "no", "none")):
        return None
    if args.config is not None:
        return None if args.config.lower() == "none" else args.config
    return "" if value is None or value is True else str(value)
