"""The engines as data. A fact that depends on the version stands in `bringup.serving.versions`."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest


@dataclass(frozen=True)
class Engine:
    """One server.

    `package` is the distribution that carries its version; `known_version` the one that its defaults were read from.
    `reasoning_field` names the field of a message that holds the thinking. `port` and `meeting_port` are defaults
    (meeting: where head and workers find each other). `more_ports` are offsets from the meeting port that the head
    binds too. `api_key_env` carries the key where the engine takes it from the environment, else `api_key_flag`.
    `size_flags` are the names of the flags whose values, multiplied, give the number of ranks. `bound` and `shards`
    are regular expressions over its log: one rank bound (groups world, rank, local, address),
    and shards loaded (groups done, total). `closed_until_ready` tells whether its port refuses while it loads.
    `set_env` are the vendor's scripts whose variables it needs.
    """

    name: str
    package: str
    known_version: str
    reasoning_field: str
    port: int
    meeting_port: int
    more_ports: tuple[int, ...]
    api_key_env: str | None
    api_key_flag: str
    served_name_flag: str
    model_flag: str | None
    bound: str
    shards: str
    closed_until_ready: bool
    size_flags: tuple[tuple[str, ...], ...]
    version_command: tuple[str, ...]
    help_command: tuple[str, ...]
    set_env: tuple[str, ...] = ()


_BOUND_VLLM = (r"world_size=(?P<world>\d+) rank=(?P<rank>\d+) local_rank=(?P<local>\d+)"
               r".*distributed_init_method=(?P<address>\S+)")
_SHARDS = r"shards:\s+\d+% (?:Completed )?\| (?P<done>\d+)/(?P<total>\d+)"

VLLM = Engine(
    name="vllm", package="vllm", known_version="0.24.0", reasoning_field="reasoning", port=8000, meeting_port=29501,
    more_ports=(), api_key_env="VLLM_API_KEY", api_key_flag="--api-key", served_name_flag="--served-model-name",
    model_flag=None, bound=_BOUND_VLLM, shards=_SHARDS, closed_until_ready=True,
    size_flags=(("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"),
                ("--data-parallel-size", "-dp")),
    version_command=("vllm", "--version"), help_command=("vllm", "serve", "--help"),
)
SGLANG = Engine(
    name="sglang", package="sglang", known_version="0.5.10.post1", reasoning_field="reasoning_content", port=30000,
    meeting_port=20000, more_ports=(1, 2, 3, 4, 5), api_key_env=None, api_key_flag="--api-key",
    served_name_flag="--served-model-name", model_flag="--model-path",
    bound=(r"world_size=(?P<world>\d+) rank=(?P<rank>\d+) local_rank=(?P<local>\d+)"
           r".*distributed_init_method=(?P<address>\S+)"),
    shards=_SHARDS, closed_until_ready=False,
    size_flags=(("--tensor-parallel-size", "--tp-size", "--tp"), ("--pipeline-parallel-size", "--pp-size")),
    version_command=("python", "-c", "import sglang; print(sglang.__version__)"),
    help_command=("python", "-m", "sglang.launch_server", "--help"),
)
SGLANG_KT = Engine(**{**SGLANG.__dict__, "name": "sglang-kt", "package": "sglang-kt", "known_version": "0.5.3"})
VLLM_ASCEND = Engine(**{**VLLM.__dict__, "name": "vllm-ascend", "package": "vllm-ascend", "known_version": "0.23.0",
                        "set_env": ("/usr/local/Ascend/ascend-toolkit/set_env.sh",
                                    "/usr/local/Ascend/nnal/atb/set_env.sh")})

ENGINES = {engine.name: engine for engine in (VLLM, SGLANG, SGLANG_KT, VLLM_ASCEND)}


def engine_named(name: str, where: Origin | None = None) -> Engine:
    """The engine of a name. Raises InputError with the nearest one."""
    if name in ENGINES:
        return ENGINES[name]
    near = nearest(name, ENGINES)
    raise InputError(f"no engine is called `{name}`", where=where, expected=", ".join(ENGINES),
                     next=f"engine: {near}" if near else None)
