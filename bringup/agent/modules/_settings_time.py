"""The clock follows a time server: chrony where it is there, else systemd-timesyncd."""

import os
import time

from bringup.agent.modules._settings import Setting, container

_SERVICES = ("chrony", "chronyd", "ntpsec", "ntpd", "ntp", "systemd-timesyncd")
WAIT = 30.0
"""Seconds that a service just started gets to find a server."""


class Time(Setting):
    """One time service runs, starts at boot and has found a server."""

    name = "time"

    def missing(self):
        if not os.path.isdir("/run/systemd/system"):
            return "systemd does not run here: the clock is the machine's outside"
        if container():
            return "the clock of a container is the machine's outside"
        if not self._services():
            return "no time service is installed (chrony or systemd-timesyncd): list the package first"
        return None

    def _services(self):
        """Installed services in our order: name -> (enabled, active)."""
        out = {}
        for name in _SERVICES:
            state = self.ask("systemctl", "show", "-p", "LoadState,UnitFileState,ActiveState", name)
            fields = dict(line.split("=", 1) for line in state.splitlines() if "=" in line)
            if fields.get("LoadState") == "loaded":
                out[name] = (fields.get("UnitFileState") in ("enabled", "alias"),
                             fields.get("ActiveState") == "active")
        return out

    def _chosen(self):
        """The one that runs, else the first installed."""
        services = self._services()
        return next((name for name, (_, active) in services.items() if active), next(iter(services)))

    def _synchronised(self):
        return "NTPSynchronized=yes" in self.ask("timedatectl", "show", "-p", "NTPSynchronized")

    def wrong(self):
        name = self._chosen()
        enabled, active = self._services()[name]
        out = [] if active else ["no time service runs (%s is there)" % name]
        if not enabled:
            out.append("%s does not start at boot" % name)
        if active and not self._synchronised():
            out.append("%s has found no time server" % name)
        return out

    def before(self):
        name = self._chosen()
        enabled, active = self._services()[name]
        return {"service": name, "enabled": enabled, "active": active}

    def apply(self):
        name = self._chosen()
        self.command("systemctl", "unmask", name)
        self.command("systemctl", "enable", "--now", name)
        end = time.monotonic() + WAIT
        while not self._synchronised() and time.monotonic() < end:
            time.sleep(1.0)

    def restore(self, kept):
        if not kept["enabled"]:
            self.command("systemctl", "disable", kept["service"])
        if not kept["active"]:
            self.command("systemctl", "stop", kept["service"])
