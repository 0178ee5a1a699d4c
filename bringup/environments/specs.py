"""The modules of this room as playbooks see them."""

from __future__ import annotations

from bringup.environments.build import ARGUMENTS, build_environments, verify_environments
from bringup.run.actions import ModuleSpec


def environment_modules() -> list[ModuleSpec]:
    """`build_environments` and `verify_environments`; their host half is `python_env`."""
    return [
        ModuleSpec("build_environments", ARGUMENTS, agent="python_env", fleet_action=build_environments,
                   help="build the locked environments on all hosts, each proven"),
        ModuleSpec("verify_environments", ARGUMENTS, agent="python_env", fleet_action=verify_environments,
                   reads_only=True, help="prove the environments that are there again"),
    ]
