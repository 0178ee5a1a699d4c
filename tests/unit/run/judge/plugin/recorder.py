"""A callback for ansible-playbook that records what each host came to, for the judge."""

from __future__ import annotations

import json
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
    name: recorder
    type: stdout
    short_description: records results
    description: records results
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "recorder"

    def __init__(self):
        super().__init__()
        self.seen = {}
        self.errors = []

    def add(self, result, status):
        data = result._result
        entry = [result._task.get_name(), status]
        debug = result._task.action.rpartition(".")[2] == "debug"
        if debug and status == "ok" and "msg" in data and "results" not in data:
            entry.append(data["msg"])
        self.seen.setdefault(result._host.get_name(), []).append(entry)

    def v2_runner_on_ok(self, result):
        if result._task.action.rpartition(".")[2] in ("include_tasks", "include_role"):
            return
        self.add(result, "changed" if result._result.get("changed") else "ok")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.add(result, "ignored" if ignore_errors else "failed")

    def v2_runner_on_skipped(self, result):
        if result._task.action.rpartition(".")[2] == "meta":
            return
        self.add(result, "skipped")

    def v2_runner_on_unreachable(self, result):
        self.add(result, "unreachable")

    def v2_playbook_on_stats(self, stats):
        recap = {host: stats.summarize(host) for host in sorted(stats.processed)}
        with open(os.environ["RECORD"], "w") as file:
            json.dump({"hosts": self.seen, "recap": recap}, file, indent=1, sort_keys=True, default=str)
