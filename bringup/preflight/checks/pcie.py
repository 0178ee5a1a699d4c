"""PCI Express: links of devices, what the kernel said of them, ACS and IOMMU, peer memory for RDMA."""

from __future__ import annotations

from bringup.preflight.checks.devices import by_bus, gpus
from bringup.preflight.checks.driver import DRIVER
from bringup.preflight.parsers.text import version
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread


@check("pcie.width", "every GPU sits on as many PCIe lanes as it can use", platform="nvidia", reads=("nvidia.q",),
       source="DeepOps, DCGM: width 16", after=DRIVER, remedy="reseat the board; look at the slot's bifurcation")
def width(view: View) -> Outcome:
    log = view.facts.smi
    narrow = [gpu for gpu in log.gpus
              if gpu.pcie_width is not None and gpu.pcie_width_max is not None and gpu.pcie_width < gpu.pcie_width_max]
    if narrow:
        return failed(f"{gpus(gpu.index for gpu in narrow)}: x{narrow[0].pcie_width} of x{narrow[0].pcie_width_max}")
    if all(gpu.pcie_width is None for gpu in log.gpus):
        return skipped("not said")
    return passed(f"x{log.gpus[0].pcie_width}")


@check("pcie.generation", "every GPU can reach its PCIe generation", platform="nvidia", reads=("nvidia.q",),
       source="hardware profile; an idle link may show less", after=DRIVER, remedy="BIOS: link speed of the slot")
def generation(view: View) -> Outcome:
    profile = view.profile
    log = view.facts.smi
    known = [gpu for gpu in log.gpus if gpu.pcie_gen_max is not None]
    if profile is None or profile.pcie_generation is None or not known:
        return skipped("no profile says which")
    low = [gpu for gpu in known if (gpu.pcie_gen_max or 0) < profile.pcie_generation.number]
    if low:
        return failed(f"{gpus(gpu.index for gpu in low)}: at most generation {low[0].pcie_gen_max}",
                      required=f"generation {profile.pcie_generation.value}", source=profile.pcie_generation.source)
    return passed(f"generation {known[0].pcie_gen_max}")


@check("pcie.narrow", "the kernel found no device behind a narrower PCIe link", reads=("host.kernel_log",),
       source="imbue: `available PCIe bandwidth, limited by`", remedy="reseat the board; look at the riser")
def narrow(view: View) -> list[Outcome]:
    seen = dict(view.facts.kernel_log.narrow)
    return [warned(f"{by_bus(view, device)}: {text}") for device, text in seen.items()] or [passed("none")]


@check("pcie.slot-power", "no card lacks power on its slot", reads=("host.kernel_log",), source="imbue warns",
       remedy="look at the power cabling of the riser")
def slot_power(view: View) -> Outcome:
    seen = view.facts.kernel_log.slot_power
    return warned("a card lacks slot power", details=(seen[-1],)) if seen else passed("none")


@check("pcie.acs", "no bridge forces peer traffic through the CPU (ACS)", reads=("host.pci_acs", "host.virtual"),
       source="NCCL guide: SrcValid- on bare metal", remedy="disable ACS in the BIOS, or by setpci at boot")
def acs(view: View) -> Outcome:
    if view.facts.virtual != "none":
        return skipped(f"a virtual machine ({view.facts.virtual}): its host decides")
    bridges = view.facts.acs
    if not bridges:
        return skipped("lspci names no bridge that could")
    on = [device for device, enabled in bridges if enabled]
    if on:
        return warned(f"on for {len(on)} bridges: GPU-to-NIC traffic takes the way over the CPU",
                      details=(", ".join(device for device in on[:4] if device),))
    return passed("off")


@check("pcie.iommu", "the IOMMU is off or passes through", reads=("host.cmdline", "host.virtual"),
       source="nccl-tests, NCCL: translation makes collectives slow or hang", remedy="iommu=pt on the kernel's line")
def iommu(view: View) -> Outcome:
    if view.facts.virtual != "none":
        return skipped(f"a virtual machine ({view.facts.virtual}): its host decides")
    words = view.facts.answers.file("host.cmdline").split()
    if "iommu=pt" in words or "iommu=off" in words or "intel_iommu=off" in words or "amd_iommu=off" in words:
        return passed("passes through or off")
    if "intel_iommu=on" in words or "amd_iommu=on" in words:
        return warned("translates: intel_iommu=on without iommu=pt", mend="add iommu=pt to the kernel's line, reboot")
    return noted("the kernel's line does not say; the distribution's default decides")


@check("rdma.peer-memory", "RDMA can reach GPU memory: nvidia_peermem or DMA-BUF", platform="nvidia",
       reads=("host.modules", "host.kernel", "nvidia.module"), source="NCCL: GDRDMA; DMA-BUF from kernel 5.12",
       remedy="sudo modprobe nvidia_peermem   (role host_tuning keeps it)")
def peer_memory(view: View) -> Outcome:
    try:
        ports = view.facts.rdma
    except Unread:
        return skipped("no RDMA device")
    if not ports:
        return skipped("no RDMA device")
    if "nvidia_peermem" in view.facts.modules or "nv_peer_mem" in view.facts.modules:
        return passed("nvidia_peermem")
    opened = "Open Kernel Module" in "".join(view.facts.answers.files("nvidia.module").values())
    least = limits()["kernel_dmabuf"]
    if opened and version(view.facts.kernel) >= version(str(least.value)):
        return passed("DMA-BUF of the open module")
    text = "neither nvidia_peermem nor DMA-BUF: traffic between hosts goes through host memory"
    return failed(text) if view.need.multi_node else warned(text)


@check("rdma.gdrcopy", "GDRCopy is there where expert parallelism wants it", platform="nvidia", reads=("host.modules",),
       source="NVSHMEM and DeepEP", remedy="install gdrcopy and load gdrdrv")
def gdrcopy(view: View) -> Outcome:
    if "gdrdrv" in view.facts.modules:
        return passed("gdrdrv")
    return skipped("not loaded; only DeepEP across hosts wants it")
