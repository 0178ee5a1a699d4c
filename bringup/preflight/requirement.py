"""What a host must be, and by whose word: hardware profile, thresholds, plan. Data, not code."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.base.yaml import load_file

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Required:
    """One value with its unit and the word that it stands on."""

    value: Any
    source: str
    unit: str = ""

    @property
    def number(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return f"{self.value} {self.unit}".strip()


@dataclass(frozen=True)
class Line:
    """The bus bandwidth (GB/s) that an all-reduce over so many devices must reach at its largest size.

    `nvls` says whether the line stands with NVLS, without it, or (None) for both.
    """

    devices: int
    busbw: float
    source: str
    nvls: bool | None = None


@dataclass(frozen=True)
class Profile:
    """What a kind of hardware must show. Units as in data/profiles.yml; None where no number is known."""

    name: str
    platform: str
    product: Required
    count: Required
    memory: Required | None = None
    nvlinks: Required | None = None
    nvlink_speed: float | None = None
    nvswitch: bool = False
    pcie_generation: Required | None = None
    pcie_width: Required | None = None
    power: Required | None = None
    all_reduce: tuple[Line, ...] = ()
    host_copy: Required | None = None
    peer_copy: Required | None = None
    across: Required | None = None
    memory_bandwidth: Required | None = None

    def fits(self, product: str) -> bool:
        """True when a product's name is of this kind."""
        return re.search(str(self.product.value), product) is not None


@dataclass(frozen=True)
class Need:
    """What the plan makes of one host. An empty Need (no deployment) asks for nothing but health.

    `ports` maps a TCP port to what binds it. `nodes` are the hosts of its replica, head first. `addresses` maps each
    host of the run to what the others reach it by. Bytes are bytes; `memory_fraction` is 0..1. `deployed` says that
    the inventory has a deployment, `recorded` that the host's accelerators are a recording: no weights are loaded.
    `weights_fetched` says that the deployment names where the weights come from: a later stage brings them.
    `urls` are addresses that the host downloads from.
    `baseline` is what was recorded of this host (see baseline.py), `tolerance` the percent that a measure may lose.
    """

    deployed: bool = False
    hardware: str = ""
    profile: Profile | None = None
    accelerators: int | None = None
    engine: str = ""
    variant: str = ""
    recipe: str = ""
    manager: str = ""
    environment: str = ""
    cuda_of_wheel: str = ""
    wheel: str = ""
    torch: str = ""
    torch_npu: str = ""
    numpy: str = ""
    model_path: str = ""
    weights_bytes: int | None = None
    weights_fetched: bool = False
    weights_per_device: int | None = None
    memory_fraction: float | None = None
    memory_minimum: int | None = None
    memory_source: str = ""
    ports: Mapping[int, str] = field(default_factory=dict)
    nodes: Sequence[str] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    rdma_ports: Sequence[str] = ()
    transport: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    account: str = ""
    cpu_variant: str = ""
    root: str = "/opt/bringup"
    privileged: bool = True
    spare: bool = False
    recorded: bool = False
    login: str = ""
    urls: Sequence[str] = ()
    nccl_tests: str = ""
    torch_python: str = ""
    baseline: Mapping[str, Any] | None = None
    tolerance: float = 5.0

    @property
    def multi_node(self) -> bool:
        """True when this host's replica spans several hosts."""
        return len(self.nodes) > 1

    @property
    def platform(self) -> str:
        return self.profile.platform if self.profile else ""

    @property
    def count(self) -> Required | None:
        """Accelerators that this host must have."""
        if self.accelerators is not None:
            return Required(self.accelerators, "the inventory: deployment.accelerators")
        return self.profile.count if self.profile else None


@functools.lru_cache(maxsize=1)
def profiles() -> Mapping[str, Profile]:
    """All hardware profiles by name."""
    document = load_file(_DATA / "profiles.yml", shown_as="profiles.yml")
    words = document["sources"]
    out = {}
    for name, raw in document["profiles"].items():

        def one(key: str, field_name: str = "value", raw: Mapping[str, Any] = raw) -> Required | None:
            entry = raw.get(key)
            return Required(entry[field_name], str(words[entry["source"]])) if entry and field_name in entry else None

        product, count = one("name"), one("count")
        assert product is not None and count is not None, name
        out[str(name)] = Profile(
            name=str(name), platform=str(raw["platform"]), product=product, count=count, memory=one("memory"),
            nvlinks=one("nvlinks"), nvlink_speed=(raw.get("nvlinks") or {}).get("speed"),
            nvswitch=bool((raw.get("nvswitch") or {}).get("value")), pcie_generation=one("pcie", "generation"),
            pcie_width=one("pcie", "width"), power=one("power"), host_copy=one("host_copy"), peer_copy=one("peer_copy"),
            across=one("across"), memory_bandwidth=one("memory_bandwidth"),
            all_reduce=tuple(Line(int(line["devices"]), float(line["busbw"]), str(words[line["source"]]),
                                  line.get("nvls")) for line in raw.get("all_reduce", ())))
    return out


def profile(name: str, where: Any = None) -> Profile:
    """A profile by name. Raises InputError with the nearest one."""
    known = profiles()
    if name in known:
        return known[name]
    near = nearest(name, known)
    raise InputError(f"no hardware profile is named `{name}`", where=where, expected=", ".join(known),
                     next=f"hardware: {near}" if near else None)


def profile_of(product: str) -> Profile | None:
    """The profile whose name pattern a product's name fits, the longest pattern first; None for a stranger."""
    for known in sorted(profiles().values(), key=lambda p: -len(str(p.product.value))):
        if known.name != "ascend-950" and known.fits(product):
            return known
    return None


@functools.lru_cache(maxsize=1)
def limits() -> Mapping[str, Required]:
    """Thresholds by name."""
    document = load_file(_DATA / "limits.yml", shown_as="limits.yml")
    return {str(name): Required(raw["value"], str(raw["source"]), str(raw.get("unit", "")))
            for name, raw in document.items()}


@dataclass(frozen=True)
class XidMeaning:
    """How bad an Xid is (`note`, `warn`, `fail`), what it means, what to do."""

    verdict: str
    means: str
    action: str


@functools.lru_cache(maxsize=1)
def xids() -> Mapping[int, XidMeaning]:
    """Known Xid codes."""
    document = load_file(_DATA / "xid.yml", shown_as="xid.yml")
    return {int(code): XidMeaning(str(raw["verdict"]), str(raw["means"]), str(raw["action"]))
            for code, raw in document.items()}


@functools.lru_cache(maxsize=1)
def cann_table() -> Mapping[str, Required]:
    """The least Ascend driver by CANN release (first two numbers)."""
    document = load_file(_DATA / "ascend.yml", shown_as="ascend.yml")
    return {str(name): Required(str(raw["driver"]), str(raw["source"])) for name, raw in document["cann"].items()}
