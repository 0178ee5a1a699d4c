"""An inventory as others read it: the JSON of `ansible-inventory`, a tree, a table."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.secrets import Secret
from bringup.base.yaml import UnsafeText, VaultedText
from bringup.inventory.model import Group, Inventory

MAGIC = frozenset({
    "ansible_async_path", "ansible_collection_name", "ansible_config_file", "ansible_dependent_role_names",
    "ansible_diff_mode", "ansible_facts", "ansible_forks", "ansible_inventory_sources", "ansible_limit",
    "ansible_play_batch", "ansible_play_hosts", "ansible_play_hosts_all", "ansible_play_role_names",
    "ansible_playbook_python", "ansible_role_name", "ansible_role_names", "ansible_run_tags", "ansible_skip_tags",
    "ansible_verbosity", "ansible_version", "group_names", "groups", "hostvars", "inventory_dir", "inventory_file",
    "inventory_hostname", "inventory_hostname_short", "play_hosts", "playbook_dir", "role_name", "role_names",
    "role_path", "role_uuid",
})
"""Names that Ansible sets itself and leaves out of its listing."""


def as_list(inventory: Inventory, hosts: Sequence[str] | None = None) -> dict[str, Any]:
    """The shape of `ansible-inventory --list`, of some hosts or of all."""
    chosen = set(inventory.hosts if hosts is None else hosts)
    out: dict[str, Any] = {}
    _add_group(inventory, inventory.groups["all"], chosen, out, set())
    hostvars = {name: _merged(inventory, name, marked=True) for name in inventory.hosts if name in chosen}
    out["_meta"] = {"hostvars": {name: own for name, own in hostvars.items() if own}, "profile": "inventory_legacy"}
    return out


def as_host(inventory: Inventory, host: str) -> dict[str, Any]:
    """The shape of `ansible-inventory --host`: the merged variables."""
    return _merged(inventory, host, marked=False)


def as_graph(inventory: Inventory, group: str = "all") -> list[str]:
    """The lines of `ansible-inventory --graph`."""
    return _branch(inventory, inventory.groups[group], 0)


def as_table(inventory: Inventory, hosts: Sequence[str]) -> list[list[str]]:
    """A head and a row per host: name, address, user, how it is reached, groups."""
    rows = [["host", "address", "user", "by", "groups"]]
    for name in hosts:
        merged = inventory.variables(name)
        address = str(merged.get("ansible_host", name))
        port = merged.get("ansible_port", merged.get("ansible_ssh_port"))
        user = merged.get("ansible_user", merged.get("ansible_ssh_user", ""))
        rows.append([name, f"{address}:{port}" if port else address, str(user),
                     str(merged.get("ansible_connection", "ssh")), ", ".join(inventory.group_names(name))])
    return rows


def plain(value: Any, *, marked: bool = False) -> Any:
    """A value as JSON holds it: dates as texts, vaulted texts (and `marked` unsafe ones) as Ansible marks them."""
    if isinstance(value, VaultedText):
        return {"__ansible_vault": str(value)}
    if isinstance(value, UnsafeText) and marked:
        return {"__ansible_unsafe": str(value)}
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, Mapping):
        return {_key(key): plain(item, marked=marked) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item, marked=marked) for item in value]
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str) else value


def _merged(inventory: Inventory, host: str, *, marked: bool) -> dict[str, Any]:
    merged = inventory.variables(host)
    return {str(key): plain(value, marked=marked) for key, value in merged.items() if key not in MAGIC}


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(key)


def _add_group(inventory: Inventory, group: Group, chosen: set[str], out: dict[str, Any], seen: set[str]) -> None:
    own: dict[str, Any] = {}
    members = [host for host in group.hosts if host in chosen]
    if members and group.name != "all":
        own["hosts"] = members
    if group.children:
        own["children"] = list(group.children)
    if own:
        out[group.name] = own
    for child in group.children:
        if child not in seen:
            seen.add(child)
            _add_group(inventory, inventory.groups[child], chosen, out, seen)


def _branch(inventory: Inventory, group: Group, depth: int) -> list[str]:
    def line(name: str, depth: int) -> str:
        return "  |" * depth + f"--{name}" if depth else name

    lines = [line(f"@{group.name}:", depth)]
    for child in group.children:
        lines += _branch(inventory, inventory.groups[child], depth + 1)
    if group.name != "all":
        lines += [line(host, depth + 1) for host in group.hosts]
    return lines
