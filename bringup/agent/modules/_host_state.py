"""What of this host reaches an engine and is no part of its release: kernel and device drivers. Python 3.6.

Read from files alone, so that a hanging tool of a vendor does not hang what asks. `packages` are the versions of the
packages that bring the drivers, as far as dpkg keeps them in a file.
"""

import glob
import os
import re

_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
              "/usr/local/nvidia/lib64")
_DRIVER_PACKAGE = re.compile(r"^(nvidia-(driver|kernel|dkms|fabricmanager|open|utils)|libnvidia-compute|amdgpu-dkms|"
                             r"mlnx-ofed|doca-|ascend-|npu-)")


def of_host(root="/"):
    """kernel (release), drivers ({name: version}), packages ({name: version})."""
    return {"kernel": os.uname().release, "drivers": drivers(root), "packages": packages(root)}


def drivers(root="/"):
    """Versions by name: `nvidia` the loaded module, `nvidia library` what programs use, `amdgpu`, `ascend`, `mlx5`."""
    found = {}
    match = re.search(r"NVRM version:.*?Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s",
                      _text(root, "proc/driver/nvidia/version"))
    if match:
        found["nvidia"] = match.group(1)
    library = _nvidia_library(root)
    if library:
        found["nvidia library"] = library
    for name, module in (("amdgpu", "amdgpu"), ("mlx5", "mlx5_core")):
        version = _text(root, "sys/module/%s/version" % module).strip()
        if version:
            found[name] = version
    match = re.search(r"(?mi)^Version\s*=\s*(\S+)", _text(root, "usr/local/Ascend/driver/version.info"))
    if match:
        found["ascend"] = match.group(1)
    return found


def _nvidia_library(root):
    """The version of the NVIDIA library, from the name of its file; the newest where there are several."""
    found = set()
    for folder in _LIBRARIES:
        for path in glob.glob(os.path.join(root, folder.lstrip("/"), "libnvidia-ml.so.*.*")):
            found.add(path.rsplit(".so.", 1)[1])
    return max(found, key=numbers) if found else None


def numbers(version):
    """A version as numbers, for an order."""
    return [int(part) for part in re.findall(r"\d+", str(version))]


def packages(root="/"):
    """Versions of the installed packages that bring drivers, from dpkg's own file."""
    found = {}
    for block in _text(root, "var/lib/dpkg/status").split("\n\n"):
        name = re.search(r"(?m)^Package: (\S+)", block)
        if not name or not _DRIVER_PACKAGE.match(name.group(1)):
            continue
        version = re.search(r"(?m)^Version: (\S+)", block)
        if version and re.search(r"(?m)^Status: .* installed$", block):
            found[name.group(1)] = version.group(1)
    return found


def _text(root, path):
    try:
        with open(os.path.join(root, path), "rb") as handle:
            return handle.read(64 * 1024 * 1024).decode("utf-8", "replace")
    except OSError:
        return ""
