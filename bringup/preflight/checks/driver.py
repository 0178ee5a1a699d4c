"""NVIDIA driver: loaded, matching its library, able to run the CUDA that the environment brings."""

from __future__ import annotations

from bringup.base.text import plural
from bringup.preflight.parsers.nvidia_text import STATUSES
from bringup.preflight.parsers.text import same_release, version
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

DRIVER = ("nvidia.driver", "nvidia.library")
"""Checks whose failure explains why nothing else of nvidia-smi can be read."""


@check("nvidia.driver", "the NVIDIA kernel module is loaded and nvidia-smi answers", platform="nvidia",
       reads=("nvidia.module", "nvidia.q"), source="DeepOps, Azure: /proc/driver/nvidia/version and status 9",
       remedy="sudo modprobe nvidia", absent="unknown")
def loaded(view: View) -> Outcome:
    facts = view.facts
    trouble = facts.smi_trouble
    tool_missing = facts.answers.get("nvidia.q").missing
    try:
        module = facts.module_version
    except Unread as error:
        if not error.absent:
            raise
        if tool_missing:
            return failed("no NVIDIA driver: neither the module nor nvidia-smi is there",
                          mend="install the driver that the plan names, then reboot")
        return failed("the NVIDIA kernel module is not loaded", found=trouble[1] if trouble else None,
                      mend="sudo modprobe nvidia; journalctl -k -b | grep -i nvrm")
    if tool_missing:
        return failed(f"module {module} is loaded, nvidia-smi is not there",
                      mend="install nvidia-utils of the same version, or mount it into the container")
    if trouble and trouble[0] == "hung":
        return failed(trouble[1], details=("a process stuck in the driver: no new CUDA process will start",),
                      mend="sudo reboot", found=f"module {module}")
    if trouble and trouble[0] not in ("mismatch", "lost"):
        return failed(trouble[1], found=f"module {module}", mend="journalctl -k -b | grep -i nvrm")
    return passed(f"module {module}")


@check("nvidia.library", "the user-space library is of the loaded module's release", platform="nvidia",
       reads=("nvidia.version", "nvidia.module"), source="NVML: status 18", remedy="sudo reboot",
       after=("nvidia.driver",))
def library(view: View) -> Outcome:
    facts = view.facts
    hold = "then hold the package: apt-mark hold 'nvidia-driver-*'"
    trouble = facts.smi_trouble
    try:
        module = facts.module_version
    except Unread:
        module = ""
    if trouble and trouble[0] == "mismatch":
        text = "".join(facts.answers.get(probe).stdout for probe in ("nvidia.q", "nvidia.version", "nvidia.list"))
        there = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("NVML lib")), "")
        shown = f"library {there} does not match" if there else "the library does not match"
        return failed(f"{shown} the loaded module {module or '(version not readable)'}",
                      details=(f"{trouble[1]}; running jobs go on, new ones will not start",),
                      mend=f"sudo reboot          ({hold}); without a process on a GPU reloading the module is enough")
    versions = facts.smi_versions
    there = versions.get("library") or versions.get("driver", "")
    if not module or not there:
        raise Unread("neither version can be compared")
    # the library's version is printed with fewer parts (580.126 for 580.126.09)
    if not same_release(module, there):
        return failed(f"library {there} does not match the loaded module {module}",
                      mend=f"sudo reboot          ({hold})")
    driver = versions.get("driver", "")
    if driver and driver != module:
        return failed(f"nvidia-smi is of {driver}, the loaded module of {module}", mend=f"sudo reboot  ({hold})")
    return passed(f"{there} and module {module}")


@check("nvidia.pending", "no other driver waits on disk for the next reboot", platform="nvidia",
       reads=("nvidia.module_disk", "nvidia.module"), source="unattended upgrades: the next boot loads what is on disk",
       remedy="sudo apt-mark hold 'nvidia-driver-*' 'nvidia-dkms-*'", after=DRIVER)
def pending(view: View) -> Outcome:
    disk, module = view.facts.module_on_disk, view.facts.module_version
    if disk != module:
        return warned(f"{module} is loaded, {disk} waits on disk: the next reboot changes the driver")
    return passed(disk)


@check("nvidia.cuda", "the driver's CUDA is at least that of the environment's wheels", platform="nvidia",
       reads=("nvidia.version", "nvidia.q"), source="the environment's lock; CUDA minor version compatibility",
       remedy="install a newer driver, or take the wheels of the index that fits", after=DRIVER)
def cuda(view: View) -> Outcome:
    ceiling = view.facts.smi_versions.get("cuda", "")
    if not version(ceiling):
        raise Unread("nvidia-smi names no CUDA version")
    least, fp8 = limits()["cuda_least"], limits()["cuda_fp8"]
    wheel = view.need.cuda_of_wheel
    if wheel and version(wheel) > version(ceiling):
        index = f"cu{''.join(ceiling.split('.')[:2])}"
        driver = view.facts.smi_versions.get("driver", "")
        summary = f"{view.need.wheel or f'CUDA {wheel}'} needs CUDA {wheel}, the driver {driver} ends at {ceiling}"
        if version(wheel)[:1] > version(ceiling)[:1]:
            return failed(summary, required=f"CUDA {wheel}", found=ceiling,
                          mend=f"a driver for CUDA {wheel}, or wheels of an index up to {index}")
        return warned(summary, details=("within one CUDA major version it runs, without PTX of the newer one",),
                      mend=f"a driver for CUDA {wheel}, or wheels of {index}")
    if version(ceiling) < version(str(least.value)):
        return failed(f"the driver ends at CUDA {ceiling}", required=f"CUDA {least}", source=least.source)
    if view.need.variant == "fp8" and version(ceiling) < version(str(fp8.value)):
        return warned(f"the driver ends at CUDA {ceiling}; {fp8} is recommended for FP8", source=fp8.source)
    return passed(f"CUDA {ceiling}" + (f" for {wheel}" if wheel else ""))


@check("nvidia.toolkit", "a CUDA toolkit on the path is not newer than the driver", platform="nvidia",
       reads=("nvidia.nvcc",), source="kernels built by a newer toolkit do not load",
       remedy="build with the toolkit of the environment", after=DRIVER)
def toolkit(view: View) -> Outcome:
    there, ceiling = view.facts.toolkit, view.facts.smi_versions.get("cuda", "")
    if version(ceiling) and version(there)[:1] > version(ceiling)[:1]:
        return warned(f"nvcc is of CUDA {there}, the driver ends at {ceiling}")
    return passed(f"CUDA {there}")


@check("nvidia.persistence", "persistence mode is on", platform="nvidia", reads=("nvidia.q",),
       source="Azure, DCGM deployment test", remedy="sudo nvidia-smi -pm 1   (role host_tuning keeps it)", after=DRIVER)
def persistence(view: View) -> Outcome:
    off = [gpu.index for gpu in view.facts.smi.gpus if gpu.persistence is False]
    if off:
        return warned(f"off on {_gpus(off)}: the driver unloads between processes and each start takes seconds longer")
    return passed("on")


@check("nvidia.mig", "MIG is off", platform="nvidia", reads=("nvidia.q",),
       source="tensor parallel serving needs whole devices and their NVLinks", remedy="sudo nvidia-smi -mig 0",
       after=DRIVER)
def mig(view: View) -> Outcome:
    on = [gpu.index for gpu in view.facts.smi.gpus if gpu.mig]
    if on:
        return failed(f"MIG is on on {_gpus(on)}: no NVLink, no whole device",
                      mend=f"sudo nvidia-smi -i {','.join(map(str, on))} -mig 0   (no process may use them)")
    return passed("off")


@check("nvidia.compute-mode", "several processes may share a GPU", platform="nvidia", reads=("nvidia.q",),
       source="an engine opens a device from several processes", remedy="sudo nvidia-smi -c 0", after=DRIVER)
def compute_mode(view: View) -> Outcome:
    odd = [gpu for gpu in view.facts.smi.gpus if gpu.compute_mode and gpu.compute_mode != "Default"]
    if odd:
        return failed(f"{odd[0].compute_mode} on {_gpus([gpu.index for gpu in odd])}")
    return passed("Default")


@check("nvidia.hold", "the driver's packages are held", platform="nvidia", reads=("host.apt_hold",),
       source="an unattended upgrade replaces the library under the running module",
       remedy="sudo apt-mark hold 'nvidia-driver-*' 'nvidia-fabricmanager-*'   (role host_tuning does)")
def held(view: View) -> Outcome:
    loose = []
    rows = [line.split() for line in view.facts.answers.text("host.apt_hold", any_status=True).splitlines()]
    # packages that the system only knows by name have no version
    rows = [words for words in rows if len(words) == 3 and words[2] in ("install", "hold")]
    for words in rows:
        if words[1][:1].isdecimal() and words[2] == "install":
            loose.append(words[0])
    if loose:
        return noted(f"{loose[0]} may be upgraded at any time" + (f" (and {len(loose) - 1} more)" if loose[1:] else ""))
    if not rows:
        return skipped("the driver is not of this system's packages")
    return passed("held")


def _gpus(indexes: list[int]) -> str:
    from bringup.preflight.parsers.nvidia_text import busy

    return f"GPU {busy([str(index) for index in indexes])}"


@check("nvidia.status", "nvidia-smi ends with 0 though its log is whole", platform="nvidia", reads=("nvidia.q",),
       source="Azure: statuses 8 (power cables) and 10 (interrupts) of nvidia-smi", after=DRIVER,
       remedy="look at the power cables and the seat of the boards; journalctl -k -b | grep -i nvrm")
def status(view: View) -> Outcome:
    rc = view.facts.answers.get("nvidia.q").rc
    if not view.facts.smi.gpus or rc is None:
        raise Unread("nvidia-smi -q has no status")
    if rc == 0:
        return passed("0")
    text = f"nvidia-smi -q ends with {rc}: {STATUSES.get(rc, 'a status that its manual does not name')}"
    return failed(text) if rc in (8, 10) else noted(text)


@check("nvidia.gsp", "the GPU's firmware (GSP) is of the driver's release and answers", platform="nvidia",
       reads=("nvidia.q", "host.kernel_log"), after=DRIVER,
       source="the driver loads its own; gpustack: GSP that times out, Xid 119, 120",
       remedy="sudo nvidia-smi -r -i N when no job runs; reboot when it comes back")
def gsp(view: View) -> list[Outcome]:
    log = view.facts.smi
    having = [gpu for gpu in log.gpus if gpu.gsp]
    without = [gpu for gpu in log.gpus if not gpu.gsp]
    out = [warned(f"GPU {gpu.index}: firmware {gpu.gsp}, driver {log.driver}", found=gpu.gsp, required=log.driver)
           for gpu in having if log.driver and gpu.gsp != log.driver]
    if having and without:
        out.append(warned(f"GPU {', '.join(str(gpu.index) for gpu in without)} runs without GSP firmware, "
                          f"the others with {having[0].gsp}"))
    try:
        lines = view.facts.kernel_log.gsp
    except Unread as error:
        if not error.absent:
            raise
        lines = ()
    if lines:
        out.append(warned(f"the kernel log tells {plural(len(lines), 'time')} of a GSP that does not answer",
                          details=(lines[-1][:200],)))
    if out:
        return out
    return [passed(having[0].gsp) if having else skipped("no GPU runs GSP firmware")]


@check("nvidia.inforom", "no GPU's InfoROM is corrupted", platform="nvidia", reads=("nvidia.q", "nvidia.list"),
       source="Azure: nvidia-smi status 14; nvidia-smi's warning", after=DRIVER,
       remedy="open a case with the vendor (computing works; remapped rows and error counts are not kept)")
def inforom(view: View) -> list[Outcome]:
    log = view.facts.smi
    corrupted = view.facts.corrupted_inforom
    known = {gpu.bus: gpu for gpu in log.gpus}
    if corrupted:
        return [warned(f"{f'GPU {known[bus].index}' if bus in known else bus}: the InfoROM is corrupted"
                       + (f" (serial {known[bus].serial})" if bus in known and known[bus].serial else ""))
                for bus in corrupted]
    if view.facts.answers.get("nvidia.q").rc == 14:
        return [warned("nvidia-smi ends with 14: the InfoROM of a GPU is corrupted, it does not say of which")]
    images = sorted({gpu.inforom for gpu in log.gpus if gpu.inforom})
    if len(images) > 1:
        return [noted(f"different images in one host: {', '.join(images)}")]
    return [passed(images[0]) if images else skipped("these GPUs name no image")]
