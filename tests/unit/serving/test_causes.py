"""The first cause among lines of several nodes, from lines that real engines print."""

from __future__ import annotations

import pytest

from bringup.serving.causes import first_cause, waited_for
from bringup.serving.signs import Signs, rank_gaps, rank_mismatches, tensor_parallel_of

ECHO = "RuntimeError: Engine core initialization failed. See root cause above."
CLOSED = "gloo/transport/tcp/pair.cc:534 Connection closed by peer [198.18.0.12]:33811"


@pytest.mark.parametrize(("line", "key", "lies_in"), [
    ("OSError: [Errno 98] Address already in use", "port", "host"),
    ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
     "port: 29555, useIpv6: false, code: -98, name: EADDRINUSE", "port", "host"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "memory.device", "release"),
    ("ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization", "memory.kv",
     "release"),
    ("RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
     "Connection refused, remote=[127.0.1.1]:41733", "loopback", "host"),
    ("RuntimeError: Unable to find address for: eth9", "interface", "host"),
    ("(Worker_TP0 pid=4690) ERROR 11-30 19:32:00 [multiproc_executor.py:1063] torch._inductor.exc.InductorError: "
     "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')", "compiler",
     "host"),
    ("(Worker pid=1933) ERROR 11-30 19:26:11 [multiproc_executor.py:953] FileNotFoundError: No such file or directory: "
     "/models/glm/model.safetensors", "model.files", "release"),
    ("vllm: error: argument --reasoning-parser: invalid choice: 'glm47'", "parser", "release"),
    ("launch_server.py: error: unrecognized arguments: --kt-method FP8", "flag", "release"),
    ("ValueError: The checkpoint you are trying to load has model type `glm_moe_dsa` but Transformers does not "
     "recognize this architecture.", "model.type", "release"),
    ("RuntimeError: CUDA error 802: system not yet initialized", "fabric", "host"),
    ("torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. 1/2 clients joined.",
     "rendezvous", "unknown"),
])
def test_known_lines(line: str, key: str, lies_in: str) -> None:
    cause = first_cause({"gpu01": [(10.0, "INFO loading"), (11.0, line), (12.0, ECHO)]}, {})
    assert cause is not None
    assert (cause.key, cause.lies_in, cause.host) == (key, lies_in, "gpu01")
    assert cause.evidence == line


def test_a_cause_on_a_worker_goes_before_the_earlier_echo_on_the_head() -> None:
    cause = first_cause({"gpu01": [(11.0, CLOSED), (12.0, ECHO)],
                         "gpu02": [(11.5, "torch.OutOfMemoryError: CUDA out of memory.")]}, {})
    assert cause is not None and (cause.host, cause.key) == ("gpu02", "memory.device")


def test_the_earlier_of_two_causes() -> None:
    cause = first_cause({"gpu01": [(12.0, "OSError: [Errno 98] Address already in use")],
                         "gpu02": [(11.0, "RuntimeError: Unable to find address for: eth9")]}, {})
    assert cause is not None and cause.host == "gpu02"


LACKS = ("(VllmWorker-0 pid=848) WARNING 11-30 19:22:21 [cpu.py:644] Failed to import from vllm._C: "
         "ImportError('libnuma.so.1: cannot open shared object file: No such file or directory')")
NO_CACHE = ("(APIServer pid=350) ERROR 11-30 19:21:52 [registry.py:1041] FileNotFoundError: [Errno 2] No such file or "
            "directory: '/opt/bringup/.cache/vllm/modelinfos'")
"""vLLM goes on behind it."""


def test_a_warning_yields_to_an_error_and_is_the_cause_where_nothing_else_is_known() -> None:
    broken = "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'"
    lines = [(1.0, LACKS), (2.0, "(EngineCore pid=628) ERROR 11-30 19:22:26 [core.py:1510] " + broken)]
    cause = first_cause({"gpu01": lines}, {})
    assert cause is not None and cause.key == "library" and cause.lies_in == "host"
    cause = first_cause({"gpu01": [(1.0, LACKS), (2.0, "torch.OutOfMemoryError: CUDA out of memory.")]}, {})
    assert cause is not None and cause.key == "memory.device"


def test_a_cache_that_cannot_be_written_is_no_missing_weight() -> None:
    cause = first_cause({"gpu01": [(1.0, NO_CACHE), (2.0, "RuntimeError: CUDA error 802: system not yet")]}, {})
    assert cause is not None and cause.key == "fabric"


def test_without_a_known_line_the_first_to_end_is_named() -> None:
    cause = first_cause({"gpu01": [(1.0, "INFO fine")], "gpu02": [(1.0, "INFO loading")]},
                        {"gpu01": {"code": 1, "at": 30.0}, "gpu02": {"signal": 9, "code": None, "at": 20.0}})
    assert cause is not None
    assert (cause.host, cause.what, cause.evidence) == ("gpu02", "the process ended by signal 9", "INFO loading")


def test_the_node_that_the_others_waited_for_is_named_not_the_one_that_gave_up() -> None:
    line = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."
    cause = first_cause({"gpu01": [(9.0, line)], "gpu02": [(1.0, "Triton is installed")]}, {"gpu01": {"code": 1}})
    assert cause is not None and (cause.key, cause.host) == ("rendezvous", "gpu01")
    named = waited_for(cause, ["gpu02: rank 1 never joined"], {"gpu01": {"code": 1}})
    assert (named.host, named.what, named.evidence) == ("gpu02", "rank 1 never joined", line)
    assert waited_for(cause, ["gpu01: rank 0 never joined"], {"gpu01": {"code": 1}}) == cause, "all gave up"
    assert waited_for(cause, [], {}) == cause, "all were there: the way between them is at fault"


def test_neither_a_warning_about_limits_nor_a_line_of_code_is_the_cause() -> None:
    """Lines of a vLLM head whose worker never came."""
    lines = [(1.0, "(APIServer pid=2115) WARNING 11-30 19:54:18 [system_utils.py:255] Found ulimit of 20000 and failed "
                   "to automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many`"),
             (2.0, "(EngineCore pid=2300) ERROR 11-30 19:56:57 [core.py:1510]     raise RuntimeError("),
             (3.0, "(Worker pid=2400) ERROR 11-30 19:56:56 [multiproc_executor.py:953] torch.distributed."
                   "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."),
             (4.0, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
                   "{'EngineCore': 1}")]
    cause = first_cause({"gpu01": lines}, {})
    assert cause is not None and cause.key == "rendezvous" and "1/2 clients joined" in cause.evidence


def test_nothing_known_and_nothing_ended() -> None:
    assert first_cause({"gpu01": [(1.0, "INFO fine")]}, {}) is None


def test_ranks_are_counted_from_vllm_lines() -> None:
    signs = {"gpu01": Signs(), "gpu02": Signs()}
    for rank in (0, 1):
        line = f"INFO parallel_state.py:1208] world_size=4 rank={rank} local_rank={rank} backend=nccl"
        assert signs["gpu01"].read(line)
        assert not signs["gpu01"].read(line)
    signs["gpu02"].read("INFO world_size=4 rank=2 local_rank=0 distributed_init_method=tcp://198.18.0.11:29501")
    wanted = {"gpu01": (0, 1), "gpu02": (2, 3)}
    assert rank_gaps(signs, wanted) == ["gpu02: rank 3 never joined"]
    signs["gpu02"].read("INFO world_size=4 rank=3 local_rank=1")
    assert rank_gaps(signs, wanted) == []


def test_a_wrong_rank_and_another_world_size_are_findings() -> None:
    signs = {"gpu01": Signs(), "gpu02": Signs()}
    signs["gpu01"].read("world_size=2 rank=0 local_rank=0")
    signs["gpu02"].read("world_size=8 rank=5 local_rank=0")
    wanted = {"gpu01": (0,), "gpu02": (1,)}
    assert rank_mismatches(signs, wanted, 2) == [
        "gpu02 was started for 8 ranks, the replica has 2", "gpu02 took rank 5, meant for it: 1"]
    assert rank_gaps(signs, wanted) == ["gpu02: rank 1 never joined"]


SIZES = ("(Worker pid=5146) INFO 11-30 22:39:26 [parallel_state.py:1906] world_size=4 rank=3 local_rank=1 "
         "distributed_init_method=tcp://198.18.0.11:29501 backend=gloo")
FIRST_TOO = ("(MainProcess pid=7017) INFO 11-30 22:44:21 [serve.py:239] Launching 1 data parallel engine(s) in "
             "headless mode, with head node address tcp://127.0.0.1:29550.")
"""What a real vLLM printed where a worker was given --tensor-parallel-size 4 instead of 2, and --node-rank 0."""


def test_what_a_real_worker_prints_that_was_given_other_sizes_or_the_heads_rank() -> None:
    head, other, first = Signs(), Signs(), Signs()
    head.read("(Worker pid=5558) INFO 11-30 22:39:26 [parallel_state.py:1906] world_size=2 rank=0 local_rank=0")
    other.read(SIZES)
    other.read("[W1130 22:39:26.165356901 socket.cpp:207] [c10d] The hostname of the client socket cannot be got.")
    wanted = {"gpu01": (0,), "gpu02": (1,)}
    assert rank_mismatches({"gpu01": head, "gpu02": other}, wanted, 2)[0] == (
        "gpu02 was started for 4 ranks, the replica has 2")
    assert other.joined == SIZES, "the evidence is the line that says so, not the last one"
    first.read(FIRST_TOO)
    assert rank_mismatches({"gpu01": head, "gpu02": first}, wanted, 2) == ["gpu02 took rank 0, meant for it: 1"]
    assert first.joined == FIRST_TOO


def test_a_rank_whose_place_was_taken_is_told_from_a_crash() -> None:
    """The second of two workers with one rank: silent until the collective's limit, then this."""
    line = ("RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 60000ms for send operation to "
            "complete")
    cause = first_cause({"gpu01": [(1.0, "INFO serving")], "gpu02": [(2.0, line)]}, {})
    assert cause is not None and (cause.key, cause.host, cause.lies_in) == ("silence", "gpu02", "host")
    assert "there twice" in cause.why


def test_sglang_lines_count_by_tensor_and_pipeline_rank() -> None:
    signs = Signs(tensor_parallel=8)
    signs.read("[2026-11-30 12:00:00 TP3] Init torch distributed begin.")
    signs.read("[2026-11-30 12:00:00 PP1 TP3] Init torch distributed begin.")
    assert signs.ranks == {3, 11}


def test_progress_is_a_further_shard_or_a_new_kind_of_line_not_a_repeated_one() -> None:
    signs = Signs()
    assert signs.read("Loading safetensors checkpoint shards:  72% Completed | 118/163 [10:00<02:00]")
    assert signs.told == "loading 118/163 shards"
    assert not signs.read("Loading safetensors checkpoint shards:  72% Completed | 118/163 [10:05<02:05]")
    assert signs.read("Loading safetensors checkpoint shards:  73% Completed | 119/163 [10:09<02:00]")
    assert signs.read("waiting for the engine, 10 s")
    assert not signs.read("waiting for the engine, 20 s")


@pytest.mark.parametrize(("argv", "size"), [(["-tp", "8"], 8), (["--tensor-parallel-size=16"], 16), (["x"], 1)])
def test_tensor_parallel_of_a_command_line(argv: list[str], size: int) -> None:
    assert tensor_parallel_of(argv) == size
