"""Tiny real wheels in a folder that uv takes as its only index."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = (),
          scripts: Mapping[str, str] | None = None) -> Path:
    """Write NAME-VERSION-py3-none-any.whl with these files, requirements and console scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    content = dict(files)
    content[f"{info}/METADATA"] = (f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                                   + "".join(f"Requires-Dist: {item}\n" for item in requires))
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if scripts:
        content[f"{info}/entry_points.txt"] = "[console_scripts]\n" + "".join(
            f"{key} = {value}\n" for key, value in scripts.items())
    rows = []
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    target = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return target


BACKEND = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "{module}-{version}-py3-none-any.whl"
    info = "{module}-{version}.dist-info"
    content = {{
        "{module}.py": "BUILT = %r\\n" % os.environ.get("{variable}", "none"),
        info + "/METADATA": "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        info + "/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    content[info + "/RECORD"] = "".join(path + ",,\\n" for path in content) + info + "/RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return name
"""


def source(folder: Path, name: str, version: str, variable: str) -> Path:
    """Write NAME-VERSION.tar.gz, a source package that keeps in BUILT what `variable` was when it was built."""
    folder.mkdir(parents=True, exist_ok=True)
    top = f"{name}-{version}"
    module = name.replace("-", "_")
    content = {
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "{version}"\n'
                          '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, module=module, version=version, variable=variable),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    target = folder / f"{top}.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for path, text in content.items():
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target
