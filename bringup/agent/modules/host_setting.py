"""One setting of the host: checked, kept as it was, changed, checked again; or put back.

What a setting was before is kept once in state/host_settings/NAME.json under bringup_root, so that
`state: restored` brings it back however often it was set since. A host that lacks the knob is told as skipped.
"""

import json
import os

from bringup.agent.modules import _files, _settings_files, _settings_kernel, _settings_nvidia, _settings_time
from bringup.agent.task import Failure

SETTINGS = {setting.name: setting for setting in (
    _settings_files.Names, _settings_files.Limits, _settings_files.SharedMemory, _settings_time.Time,
    _settings_kernel.Swap, _settings_kernel.NumaBalancing, _settings_kernel.Governor, _settings_nvidia.Persistence,
    _settings_nvidia.PeerMemory, _settings_nvidia.DriverHold)}
ARGUMENTS = {
    "name": {"type": "str", "required": True, "choices": sorted(SETTINGS)},
    "state": {"type": "str", "default": "present", "choices": ["present", "restored"]},
    "addresses": {"type": "dict", "default": {}},
    "accounts": {"type": "list", "default": []},
    "value": {"type": "str"},
}
"""addresses: name -> address of every cluster host (names). accounts: whose limits count (limits).
value: the governor, or the size of /dev/shm."""


def run(task):
    setting = SETTINGS[task.args["name"]](task)
    path = os.path.join(task.root or "/opt/bringup", "state", "host_settings", setting.name + ".json")
    if task.args.get("state") == "restored":
        return _restore(task, setting, path)
    reason = setting.missing()
    if reason:
        return {"changed": False, "skipped": True, "msg": reason, "setting": setting.name}
    wrong = setting.wrong()
    out = {"changed": bool(wrong), "setting": setting.name, "wrong": wrong,
           "msg": "; ".join(wrong) or "as it should be"}
    if task.diff:
        out["diff"] = setting.diff() if wrong else []
    if not wrong or task.check:
        return out
    before = setting.before()
    made = _keep(task, setting, path, before)
    out["kept"] = path
    try:
        setting.apply()
        left = setting.wrong()
        if left:
            raise Failure("the setting did not take and was put back: %s" % left[0], setting=setting.name,
                          found="; ".join(left))
    except Failure:
        setting.restore(before)
        if made:
            os.unlink(path)
        raise
    return out


def _keep(task, setting, path, before):
    """Write down what is there now, unless an earlier run did: that one saw the host as it came. True when written."""
    if os.path.exists(path):
        return False
    folder = os.path.dirname(path)
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder)
    except OSError as error:
        raise _files.failure(error, "cannot make %s" % folder, folder)
    text = json.dumps({"setting": setting.name, "run": task.run_id, "before": before}, indent=1, sort_keys=True)
    _files.replace(task, path, text.encode("utf-8") + b"\n", {"mode": 0o600})
    return True


def _restore(task, setting, path):
    if not os.path.exists(path):
        return {"changed": False, "setting": setting.name, "msg": "nothing was changed here"}
    try:
        kept = json.loads(_files.read(path).decode("utf-8"))["before"]
    except (ValueError, KeyError):
        raise Failure("what is kept in %s cannot be read" % path, path=path,
                      next="put the setting back by hand, then remove that file")
    if not task.check:
        setting.restore(kept)
        os.unlink(path)
    return {"changed": True, "setting": setting.name, "msg": "put back", "before": kept}
