"""A systemd unit: running or not, enabled or not, masked or not."""

import os

from bringup.agent.task import Failure

ARGUMENTS = {
    "name": {"type": "str", "aliases": ["service", "unit"]},
    "state": {"type": "str", "choices": ["started", "stopped", "restarted", "reloaded"]},
    "enabled": {"type": "bool"},
    "masked": {"type": "bool"},
    "force": {"type": "bool", "default": False},
    "daemon_reload": {"type": "bool", "default": False, "aliases": ["daemon-reload"]},
    "daemon_reexec": {"type": "bool", "default": False, "aliases": ["daemon-reexec"]},
    "scope": {"type": "str", "default": "system", "choices": ["system", "user", "global"]},
    "no_block": {"type": "bool", "default": False},
}
_RUNNING = ("active", "activating")
_SHOWN = ("Id,Names,Description,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,DropInPaths,Result,Type,"
          "MainPID,ExecMainStatus,ExecMainStartTimestamp,ActiveEnterTimestamp,StateChangeTimestamp,NRestarts,"
          "NeedDaemonReload,LimitMEMLOCK,LimitNOFILE,Environment,ControlGroup,Restart,User,Group,WantedBy,After")


def run(task):
    args = task.args
    unit = args.get("name")
    if unit is None and (args.get("state") or args.get("enabled") is not None or args.get("masked") is not None):
        raise Failure("name is needed with state, enabled or masked")
    if unit is None and not (args.get("daemon_reload") or args.get("daemon_reexec")):
        raise Failure("one of state, enabled, masked, daemon_reload and daemon_reexec is needed")
    if unit is not None and any(letter in unit for letter in "*?["):
        raise Failure("a pattern cannot be a unit's name: %s" % unit)
    systemctl = _systemctl(task)
    out = {"changed": False, "name": unit, "status": {}}
    for name, word in (("daemon_reload", "daemon-reload"), ("daemon_reexec", "daemon-reexec")):
        if args.get(name) and not task.check:
            _do(task, systemctl, word)
    if unit is None:
        return out
    before = status(task, systemctl, unit)
    out["status"] = before
    _mask(task, systemctl, unit, out)
    if before.get("LoadState") == "not-found" and not (args.get("masked") is not None and args.get("state") is None
                                                       and args.get("enabled") is None):
        raise Failure("Could not find the requested service %s: host" % unit, name=unit,
                      next="systemctl list-unit-files | grep %s" % unit.split(".")[0])
    _enable(task, systemctl, unit, out)
    _state(task, systemctl, unit, before, out)
    return out


def _systemctl(task):
    scope = task.args.get("scope") or "system"
    if scope == "system" and not os.path.isdir("/run/systemd/system"):
        raise Failure("systemd does not run here (it is not PID 1)",
                      next="where no systemd is there, engines run under the manager `detached`")
    words = ["systemctl"]
    if scope != "system":
        words.append("--" + scope)
    if task.args.get("no_block"):
        words.append("--no-block")
    if task.args.get("force"):
        words.append("--force")
    return words


def status(task, systemctl, unit):
    """Properties of a unit as `systemctl show` names them, those without a value left out."""
    done = task.command(systemctl + ["show", "-p", _SHOWN, unit], environment=_environment(task))
    if done.rc != 0:
        raise _explained(systemctl + ["show", unit], done)
    pairs = (line.partition("=") for line in done.stdout.splitlines() if "=" in line)
    return {name: value for name, _, value in pairs if value}


def _environment(task):
    """A user's systemd is found by its runtime folder, which a session of ours does not set."""
    if task.args.get("scope") == "user" and "XDG_RUNTIME_DIR" not in task.command_environment():
        return {"XDG_RUNTIME_DIR": "/run/user/%d" % os.geteuid(), "LC_ALL": "C.UTF-8"}
    return {"LC_ALL": "C.UTF-8"}


def _do(task, systemctl, *words):
    done = task.command(systemctl + list(words), environment=_environment(task))
    if done.rc != 0:
        raise _explained(systemctl + list(words), done)


def _explained(command, done):
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    following = None
    if "Access denied" in done.stderr or "authentication required" in done.stderr:
        following = "say become: true"
    elif "journalctl" in done.stderr:
        following = "journalctl -n 50 -xeu %s" % command[-1]
    fields = {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr, "found": lines[0] if lines else ""}
    if following:
        fields["next"] = following
    return Failure("%s ended with %d" % (" ".join(command), done.rc), **fields)


def _file_state(task, systemctl, unit):
    """The exit status and last line of `is-enabled`: enabled, disabled, static, indirect, masked ..."""
    done = task.command(systemctl + ["is-enabled", unit], environment=_environment(task))
    lines = done.stdout.strip().splitlines()
    return done.rc, lines[-1] if lines else ""


def _mask(task, systemctl, unit, out):
    wanted = task.args.get("masked")
    if wanted is None:
        return
    if (_file_state(task, systemctl, unit)[1] == "masked") != wanted:
        out["changed"] = True
        if not task.check:
            _do(task, systemctl, "mask" if wanted else "unmask", unit)


def _enable(task, systemctl, unit, out):
    wanted = task.args.get("enabled")
    if wanted is None:
        return
    out["enabled"] = wanted
    rc, state = _file_state(task, systemctl, unit)
    # these three end with 0 too, and are not yet what was asked for
    enabled = rc == 0 and state not in ("enabled-runtime", "indirect", "alias")
    if enabled != wanted:
        out["changed"] = True
        if not task.check:
            _do(task, systemctl, "enable" if wanted else "disable", unit)


def _state(task, systemctl, unit, before, out):
    wanted = task.args.get("state")
    if wanted is None:
        return
    running = before.get("ActiveState") in _RUNNING
    word = None
    if wanted == "started":
        word = None if running else "start"
        out["state"] = "started"
    elif wanted == "stopped":
        word = "stop" if running or before.get("ActiveState") == "deactivating" else None
        out["state"] = "stopped"
    else:
        word = "start" if not running else "restart" if wanted == "restarted" else "reload"
        out["state"] = "started"
    if word is None:
        return
    out["changed"] = True
    if not task.check:
        _do(task, systemctl, word, unit)
        out["status"] = status(task, systemctl, unit)
