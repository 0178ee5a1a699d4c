"""Settings of the NVIDIA driver: persistence mode, peer memory for RDMA, the hold on its packages."""

import glob
import os
import re
import shutil

from bringup.agent.modules._settings import Setting


class Persistence(Setting):
    """The driver stays initialised between processes, now and after a boot."""

    name = "persistence"

    def missing(self):
        if not shutil.which("nvidia-smi"):
            return "no NVIDIA driver here (nvidia-smi is not there)"
        if not self._modes():
            return "nvidia-smi names no device"
        return None

    def _modes(self):
        """index -> Enabled or Disabled."""
        text = self.ask("nvidia-smi", "--query-gpu=index,persistence_mode", "--format=csv,noheader")
        return dict(re.findall(r"^\s*(\d+),\s*(\w+)", text, re.MULTILINE))

    def _service(self):
        return self.ask("systemctl", "is-enabled", "nvidia-persistenced").strip()

    def wrong(self):
        off = [index for index, mode in sorted(self._modes().items()) if mode != "Enabled"]
        return ["persistence mode is off on GPU %s" % ", ".join(off)] if off else []

    def before(self):
        return {"modes": self._modes(), "service": self._service()}

    def apply(self):
        if self._service() == "disabled":
            self.command("systemctl", "enable", "--now", "nvidia-persistenced")
        if self.wrong():
            self.command("nvidia-smi", "-pm", "1")

    def restore(self, kept):
        if kept["service"] == "disabled" and self._service() == "enabled":
            self.command("systemctl", "disable", "--now", "nvidia-persistenced")
        for index, mode in sorted(kept["modes"].items()):
            self.command("nvidia-smi", "-i", index, "-pm", "1" if mode == "Enabled" else "0")


class PeerMemory(Setting):
    """RDMA adapters reach device memory: the module nvidia_peermem, unless DMA-BUF does it."""

    name = "peer_memory"
    file = "/etc/modules-load.d/90-bringup-peermem.conf"

    def missing(self):
        if self.text("/proc/driver/nvidia/version") is None:
            return "no NVIDIA driver is loaded here"
        if not glob.glob(self.place + "/sys/class/infiniband/*"):
            return "no RDMA adapter here"
        if self._dma_buf():
            return "DMA-BUF serves here (open kernel modules on a kernel from 5.12 on): nvidia_peermem is not needed"
        if not self._loaded() and not self.ask("modinfo", "-n", "nvidia_peermem").strip():
            return "the driver brings no nvidia_peermem (it is built when the RDMA stack is there first)"
        return None

    def _dma_buf(self):
        if "Open Kernel Module" not in (self.text("/proc/driver/nvidia/version") or ""):
            return False
        numbers = re.findall(r"\d+", os.uname().release)
        return tuple(int(number) for number in numbers[:2]) >= (5, 12)

    def _loaded(self):
        return os.path.isdir(self.path("/sys/module/nvidia_peermem"))

    def wrong(self):
        return [] if self._loaded() else ["nvidia_peermem is not loaded"]

    def before(self):
        return {"loaded": self._loaded(), "file": self.text(self.file)}

    def apply(self):
        self.command("modprobe", "nvidia_peermem")
        self.write(self.file, "nvidia_peermem\n")

    def restore(self, kept):
        self.put_back(self.file, kept["file"])
        if not kept["loaded"] and self._loaded():
            self.command("modprobe", "-r", "nvidia_peermem")


class DriverHold(Setting):
    """No update moves the driver's packages under running engines: apt-mark hold."""

    name = "driver_hold"
    pattern = re.compile(r"^(nvidia-driver-|nvidia-dkms-|nvidia-kernel-|nvidia-utils-|nvidia-fabricmanager|nvidia-imex|"
                         r"nvidia-open|libnvidia-|libnvsdm|cuda-drivers|linux-modules-nvidia-)")

    def missing(self):
        if not shutil.which("apt-mark"):
            return "packages are held by apt-mark, which is not here (dnf: versionlock)"
        if not self._packages():
            return "no package of the NVIDIA driver is installed here"
        return None

    def _packages(self):
        text = self.ask("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n")
        return sorted(name for name, _, state in (line.partition(" ") for line in text.splitlines())
                      if state == "installed" and self.pattern.match(name))

    def _held(self):
        return {name.split(":")[0] for name in self.ask("apt-mark", "showhold").split()}

    def _loose(self):
        held = self._held()
        return [name for name in self._packages() if name not in held]

    def wrong(self):
        loose = self._loose()
        return ["not held: %s" % ", ".join(loose)] if loose else []

    def before(self):
        return {"loose": self._loose()}

    def apply(self):
        self.command("apt-mark", "hold", *self._loose())

    def restore(self, kept):
        if kept["loose"]:
            self.command("apt-mark", "unhold", *kept["loose"])
