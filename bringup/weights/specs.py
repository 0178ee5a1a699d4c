"""The modules of this room as playbooks see them."""

from __future__ import annotations

from bringup.run.actions import ModuleSpec
from bringup.weights.checking import CHECK_ARGUMENTS, check_weights
from bringup.weights.fetching import FETCH_ARGUMENTS, fetch_weights


def weights_modules() -> list[ModuleSpec]:
    """`check_weights` and `fetch_weights`; their host halves are `model_weights` and `tree_transfer`."""
    return [
        ModuleSpec("check_weights", CHECK_ARGUMENTS, agent="model_weights", fleet_action=check_weights,
                   reads_only=True, help="look at the model's files on all hosts: whole, wanted, equal"),
        ModuleSpec("fetch_weights", FETCH_ARGUMENTS, agent="model_weights", fleet_action=fetch_weights,
                   help="bring the weights that the deployment names to all hosts"),
    ]
