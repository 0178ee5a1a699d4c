"""`deployment: watcher`: whether watchers keep the replicas whole between runs, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest

PORT = 7710
"""Where watchers answer each other unless the site says otherwise; one more for each further replica of a node."""
_KEYS = ("port", "restarts", "silence", "on_alert")


@dataclass(frozen=True)
class WatchWishes:
    """`restarts` are those within an hour after which a replica stays down; `silence` is seconds until a node that is
    not heard counts as gone; `on_alert` is a command of the site's, run on the node that has something to tell."""

    port: int = PORT
    restarts: int = 2
    silence: float = 30.0
    on_alert: str | None = None


def read_watch(value: Any, where: Origin | None) -> WatchWishes | None:
    """The wishes in `deployment: watcher`; None where there shall be no watchers. Raises InputError."""
    if value in (None, False, "") or str(value).lower() in ("false", "no", "off"):
        return None
    if value is True or str(value).lower() in ("true", "yes", "on"):
        return WatchWishes()
    if not isinstance(value, Mapping):
        raise InputError("`watcher` takes true, false or a mapping", where=where, found=str(value),
                         expected=", ".join(_KEYS))
    for key in value:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError(f"`watcher` knows no key `{key}`", where=where, expected=", ".join(_KEYS),
                             next=f"nearest: {near}" if near else None)
    command = value.get("on_alert")
    return WatchWishes(int(_number(value, "port", PORT, 1, 65000, where)),
                       int(_number(value, "restarts", 2, 0, 100, where)),
                       _number(value, "silence", 30.0, 5, 3600, where), str(command) if command else None)


def _number(value: Mapping[str, Any], key: str, usual: float, least: float, most: float, where: Origin | None) -> float:
    given = value.get(key)
    if given is None:
        return usual
    try:
        number = float(str(given))
    except ValueError:
        number = least - 1
    if isinstance(given, bool) or not least <= number <= most:
        raise InputError(f"`watcher: {key}` takes {least:g} to {most:g}", where=where, found=str(given))
    return number
