"""Settings of the kernel: swap, NUMA balancing, the governor of the processors."""

import glob
import os
import re

from bringup.agent.modules._settings import Setting, container
from bringup.agent.task import Failure

FSTAB = "/etc/fstab"
_MARK = "#bringup# "


class Swap(Setting):
    """No swap, now and after a boot."""

    name = "swap"

    def missing(self):
        if container():
            return "swap belongs to the machine outside of this container"
        return None

    def _active(self):
        return [line.split()[0] for line in (self.text("/proc/swaps") or "").splitlines()[1:] if line.split()]

    def _lines(self):
        return [line for line in (self.text(FSTAB) or "").splitlines() if _is_swap(line)]

    def wrong(self):
        out = ["%s is in use as swap" % device for device in self._active()]
        return out + ["/etc/fstab brings back swap: %s" % line.split()[0] for line in self._lines()]

    def before(self):
        return {"active": self._active(), "fstab": self.text(FSTAB)}

    def apply(self):
        lines = (self.text(FSTAB) or "").splitlines()
        if self._lines():
            self.write(FSTAB, "".join((_MARK + line if _is_swap(line) else line) + "\n" for line in lines))
        if self._active():
            self.command("swapoff", "-a", timeout=600)

    def restore(self, kept):
        if kept["fstab"] is not None and _MARK in (self.text(FSTAB) or ""):
            # only our marks are taken off: the file may have been edited since
            lines = (self.text(FSTAB) or "").splitlines()
            self.write(FSTAB, "".join((line[len(_MARK):] if line.startswith(_MARK) else line) + "\n"
                                      for line in lines))
        for device in kept["active"]:
            if device not in self._active():
                self.command("swapon", device)


def _is_swap(line):
    words = line.split()
    return len(words) >= 3 and not line.lstrip().startswith("#") and words[2] == "swap"


class NumaBalancing(Setting):
    """The kernel moves no pages between NUMA nodes behind the engines' back."""

    name = "numa_balancing"
    knob = "/proc/sys/kernel/numa_balancing"
    file = "/etc/sysctl.d/90-bringup-numa.conf"

    def missing(self):
        if self.text(self.knob) is None:
            return "this kernel has no NUMA balancing"
        if not self.writable(self.knob):
            return "/proc/sys is read-only here (a container): set kernel.numa_balancing=0 outside"
        return None

    def wrong(self):
        value = (self.text(self.knob) or "").strip()
        out = ["kernel.numa_balancing is %s, not 0" % value] if value != "0" else []
        later = self._configured()
        if later not in (None, "0"):
            out.append("a boot would set kernel.numa_balancing to %s" % later)
        return out

    def _configured(self):
        """The value that a sysctl file sets at boot, the last one as systemd orders them; None where none does."""
        names = {}
        for folder in ("/usr/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d"):
            for path in glob.glob(self.path(folder) + "/*.conf"):
                names[os.path.basename(path)] = path[len(self.place):]
        value = None
        for name in sorted(names):
            for found in re.finditer(r"^\s*-?kernel[./]numa_balancing\s*=\s*(\d+)", self.text(names[name], ""), re.M):
                value = found.group(1)
        return value

    def before(self):
        return {"value": self.text(self.knob).strip(), "file": self.text(self.file)}

    def apply(self):
        self.write(self.file, "kernel.numa_balancing=0\n")
        self.poke(self.knob, "0")

    def restore(self, kept):
        self.put_back(self.file, kept["file"])
        self.poke(self.knob, kept["value"])


class Governor(Setting):
    """Every processor runs under the governor asked for (performance)."""

    name = "governor"
    pattern = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
    file = "/etc/tmpfiles.d/90-bringup-governor.conf"

    def wanted(self):
        return self.task.args.get("value") or "performance"

    def _knobs(self):
        return sorted(path[len(self.place):] for path in glob.glob(self.place + self.pattern))

    def missing(self):
        knobs = self._knobs()
        if not knobs:
            return "the processors have no governor here (a virtual machine, or the firmware keeps it)"
        known = (self.text(os.path.dirname(knobs[0]) + "/scaling_available_governors") or "").split()
        if known and self.wanted() not in known:
            raise Failure("the governor %s is not offered here" % self.wanted(), found=", ".join(known))
        if not self.writable(knobs[0]):
            return "/sys is read-only here (a container): set the governor outside"
        return None

    def _values(self):
        return {knob: (self.text(knob) or "").strip() for knob in self._knobs()}

    def wrong(self):
        others = [value for value in self._values().values() if value != self.wanted()]
        return ["%d of %d processors run under %s, not %s" % (
            len(others), len(self._knobs()), ", ".join(sorted(set(others))), self.wanted())] if others else []

    def before(self):
        return {"values": self._values(), "file": self.text(self.file)}

    def apply(self):
        # systemd-tmpfiles writes it again at boot
        self.write(self.file, "w %s - - - - %s\n" % (self.pattern, self.wanted()))
        for knob in self._knobs():
            self.poke(knob, self.wanted())

    def restore(self, kept):
        self.put_back(self.file, kept["file"])
        for knob, value in sorted(kept["values"].items()):
            if os.path.exists(self.path(knob)):
                self.poke(knob, value)
