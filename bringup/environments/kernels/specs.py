"""The modules of kernels as playbooks see them."""

from __future__ import annotations

from bringup.environments.kernels.build import ARGUMENTS, build_kernels
from bringup.environments.kernels.verify import verify_kernels
from bringup.run.actions import ModuleSpec


def kernel_modules() -> list[ModuleSpec]:
    """`build_kernels` and `verify_kernels`; host halves: `kernel_build`, `kernel_share`, `job`, `tree_transfer`."""
    return [
        ModuleSpec("build_kernels", ARGUMENTS, agent="kernel_build", fleet_action=build_kernels,
                   help="build kernels once per kind of host, prove them, spread them"),
        ModuleSpec("verify_kernels", ARGUMENTS, agent="kernel_build", fleet_action=verify_kernels, reads_only=True,
                   help="prove the kernels that are there again"),
    ]
