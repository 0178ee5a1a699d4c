"""Sources of the kernels that a deployment builds: packed where git reaches them, laid where a build looks for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.bundle.manifest import Entry, Manifest
from bringup.environments.kernels.asking import asked_kernels, checked
from bringup.environments.kernels.recipe import Recipe, load_recipe
from bringup.environments.kernels.source import source_blob


@dataclass(frozen=True)
class Kernel:
    """A recipe at one revision, and the mirrors that hold for its git addresses."""

    recipe: Recipe
    mirrors: Mapping[str, str]

    @property
    def label(self) -> str:
        """`deep_gemm at 54e226124093`; a recipe may have several revisions by name."""
        return f"{self.recipe.name} at {self.commit[:12]}" if self.commit else self.recipe.name

    @property
    def commit(self) -> str:
        """The git revision; empty where the source lies in the project."""
        return self.recipe.source.main.revision if self.recipe.source.main is not None else ""


def kernels_of(root: Path, hosts: Sequence[str], variables: Callable[[str], Mapping[str, Any]]) -> tuple[Kernel, ...]:
    """The kernels of the hosts' deployments, each revision once. Raises InputError."""
    out: dict[tuple[str, str], Kernel] = {}
    for host in hosts:
        mirrors = dict(variables(host).get("bringup_kernel_mirrors") or {})
        for asked in asked_kernels(variables(host)):
            recipe = checked(asked, load_recipe(root / "kernels", asked.name))
            out.setdefault((recipe.name, recipe.revision),
                           Kernel(recipe, {str(start): str(place) for start, place in mirrors.items()}))
    return tuple(out.values())


def fetch_kernel(kernel: Kernel, cache: Path) -> Path | None:
    """The source with its submodules as one tar; None where it lies in the project itself. Raises StepError."""
    if kernel.recipe.source.folder is not None:
        return None
    return Path(str(source_blob(kernel.recipe, cache, kernel.mirrors).source))


def packages_of(kernels: Sequence[Kernel]) -> list[str]:
    """Debian packages that hosts need to build and to run these."""
    return sorted({name for one in kernels for system in (one.recipe.system, one.recipe.run_system)
                   for name in system.get("apt", ())})


def lay_kernels(manifest: Manifest, place: Callable[[Entry], Path], cache: Path) -> None:
    """Put the carried sources where a build on this controller looks for them."""
    for entry in manifest.of_kind("kernel"):
        target = cache / "kernels" / Path(entry.path).name
        if target.is_file() and target.stat().st_size == entry.size:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(place(entry), staged)
        os.replace(staged, target)
