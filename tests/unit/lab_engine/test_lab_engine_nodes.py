"""How the lab engine starts, meets, loads, dies: as the real ones do."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from lab_engine_processes import (
    FLAGS,
    EngineNode,
    Replica,
    free_port,
    model_folder,
    vllm_alone,
    vllm_node,
)

from bringup.serving.engines.facts import SGLANG, VLLM


@pytest.fixture
def model(tmp_path):
    return model_folder(tmp_path / "model")


@pytest.fixture
def started():
    nodes = []
    yield lambda node: nodes.append(node) or node
    for node in nodes:
        node.end()


def test_three_nodes_meet_and_every_rank_is_accounted_for(tmp_path, model, started):
    replica = started(Replica(tmp_path, model))
    replica.head.wait_ready()
    found = {}
    for number, node in replica.nodes.items():
        for match in re.finditer(VLLM.bound, node.text()):
            assert match["world"] == "24"
            assert match["address"] == f"tcp://127.0.0.1:{replica.meeting}"
            found.setdefault(int(match["rank"]), []).append(number)
    assert found == {rank: [rank // 8] for rank in range(24)}
    done = [int(match["done"]) for match in re.finditer(VLLM.shards, replica.head.text())]
    assert done == sorted(done) and done[-1] == 20
    assert json.loads(replica.head.get("/v1/models")["body"])["data"][0]["id"] == "glm-5.1"
    assert "vllm:num_requests_running" in replica.head.get("/metrics")["body"]
    assert json.loads(replica.head.get("/version")["body"])["version"].startswith("0.24.0")


def test_the_port_is_closed_until_all_is_ready(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, start=(0,)))
    replica.head.wait_for("waiting for 2 other node(s)")
    assert replica.head.get("/health")["error"] == "Connection refused"
    replica.start(2)
    replica.start(1)
    replica.head.wait_ready()


def test_a_worker_before_the_head_waits(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2, start=(1,)))
    replica.nodes[1].wait_for("waiting for the head")
    replica.start(0)
    replica.head.wait_ready()


def test_head_alone_gives_up_at_the_collectives_limit(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2, timeout=1, start=(0,)))
    assert replica.head.wait_ended() == 1
    assert "DistStoreError: Timed out after 2 seconds waiting for clients. 1/2 clients joined." in replica.head.text()
    assert "Engine core initialization failed" in replica.head.text()


def test_worker_alone_gives_up_at_the_collectives_limit(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2, timeout=1, start=(1,)))
    assert replica.nodes[1].wait_ended() == 1
    assert "DistNetworkError: The client socket has timed out after 1000ms" in replica.nodes[1].text()


def test_a_rank_twice_is_refused_and_the_head_is_not_disturbed(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, start=(0, 1)))
    replica.head.wait_for("node 1 joined")
    twice = replica.start(9, as_rank=1)
    assert twice.wait_ended() == 1
    assert "node rank 1 has joined already" in twice.text()
    replica.start(2)
    replica.head.wait_ready()


def test_sizes_that_differ_are_refused(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2, start=(0,)))
    odd = replica.start(1, extra=("--tensor-parallel-size", "16"))
    assert odd.wait_ended() == 1
    assert "sizes differ" in odd.text() and "tp is 8 here and 16 there" in odd.text()


def test_a_dead_worker_shows_at_the_next_request_only(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2))
    replica.head.wait_ready()
    [rank_process] = replica.nodes[1].children()
    os.kill(rank_process, signal.SIGKILL)
    assert replica.nodes[1].wait_ended() == 1
    assert replica.head.get("/health")["status"] == 200
    answer = replica.head.chat()
    assert answer["status"] == 500 and "EngineCore encountered an issue" in answer["body"]
    assert replica.head.wait_ended() == 1


def test_killing_the_launcher_alone_leaves_the_rank_process_and_the_service(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2))
    replica.head.wait_ready()
    [rank_process] = replica.nodes[1].children()
    replica.nodes[1].process.kill()
    replica.nodes[1].process.wait()
    os.kill(rank_process, 0)
    assert replica.head.chat()["status"] == 200


def test_term_to_the_head_leaves_the_worker_which_never_rejoins(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2))
    replica.head.wait_ready()
    replica.head.process.terminate()
    assert replica.head.wait_ended() == 0
    time.sleep(0.3)
    assert replica.nodes[1].process.poll() is None
    replica.nodes[1].process.terminate()
    assert replica.nodes[1].wait_ended() == 0


def test_a_peer_that_crashes_while_loading_takes_the_others_with_it(tmp_path, model, started):
    model_folder(model, {"name": "crash_loading", "node_rank": 1})
    replica = started(Replica(tmp_path, model, nodes=2))
    assert replica.nodes[1].wait_ended() == 1
    assert replica.head.wait_ended() == 1
    assert "Connection closed by peer" in replica.head.text()


def test_out_of_memory_says_so(tmp_path, model, started):
    model_folder(model, {"name": "out_of_memory", "device": 3})
    node = started(vllm_alone(tmp_path, model))
    assert node.wait_ended() == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in node.text() and "GPU 3" in node.text()


def test_wrong_rank_is_refused(tmp_path, model, started):
    model_folder(model, {"name": "wrong_rank", "node_rank": 1})
    replica = started(Replica(tmp_path, model, nodes=2))
    assert replica.nodes[1].wait_ended() == 1
    assert "node rank 2 is not in 1..1" in replica.nodes[1].text()


def test_never_meet_waits_without_a_word(tmp_path, model, started):
    model_folder(model, {"name": "never_meet", "node_rank": 1})
    replica = started(Replica(tmp_path, model, nodes=2))
    replica.head.wait_for("waiting for 1 other node(s)")
    time.sleep(0.5)
    assert replica.head.process.poll() is None and replica.nodes[1].process.poll() is None


def test_a_worker_that_dies_later(tmp_path, model, started):
    model_folder(model, {"name": "die_later", "node_rank": 1, "after": 0.5})
    replica = started(Replica(tmp_path, model, nodes=2))
    replica.head.wait_ready()
    assert replica.nodes[1].wait_ended() == 1
    assert replica.head.get("/health")["status"] == 200


def test_the_first_request_may_fail_behind_a_green_health(tmp_path, model, started):
    model_folder(model, "first_request_fails")
    node = started(vllm_alone(tmp_path, model))
    node.wait_ready()
    assert node.chat()["status"] == 500
    assert node.wait_ended() == 1


def test_a_taken_port_is_told_before_loading(tmp_path, model, started):
    first = started(vllm_alone(tmp_path, model))
    first.wait_ready()
    second = started(vllm_node(tmp_path, model, "second", FLAGS, first.port))
    assert second.wait_ended() == 1
    assert "[Errno 98] Address already in use" in second.text()
    assert "Loading safetensors" not in second.text()


def test_two_that_load_for_one_port(tmp_path, model, started):
    port = free_port()
    nodes = [started(vllm_node(tmp_path, model, f"both{number}", FLAGS, port)) for number in range(2)]
    end = time.monotonic() + 10
    while time.monotonic() < end and all(node.process.poll() is None for node in nodes):
        time.sleep(0.05)
    ended = [node for node in nodes if node.process.poll() is not None]
    assert len(ended) == 1 and ended[0].process.returncode == 1
    assert "[Errno 98] Address already in use" in ended[0].text()
    [other] = [node for node in nodes if node not in ended]
    assert other.chat()["status"] == 200


def test_a_taken_meeting_port(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2, start=(0,)))
    replica.head.wait_for("waiting for 1 other")
    other = replica.start(7, as_rank=0)
    assert other.wait_ended() == 1
    assert "EADDRINUSE" in other.text()


def test_an_interface_that_is_not_there(tmp_path, model, started):
    replica = started(Replica(tmp_path, model, nodes=2, start=()))
    node = replica.start(1, GLOO_SOCKET_IFNAME="eth9")
    assert node.wait_ended() == 1
    assert "Unable to find address for: eth9" in node.text()


@pytest.mark.parametrize(("words", "status", "text"), [
    (["--no-such-flag", "1"], 2, "unrecognized arguments: --no-such-flag"),
    (["--tensor-parallel-size", "24"], 1, "(64) must be divisible by tensor parallel size (24)"),
    (["--reasoning-parser", "glm99"], 1, "Reasoning parser 'glm99' not found"),
    (["--tool-call-parser", "glm99"], 1, "invalid tool call parser: glm99"),
    (["--headless", "--data-parallel-hybrid-lb"], 1, "not supported in headless mode"),
])
def test_wrong_flags_are_refused_in_the_real_words(tmp_path, model, started, words, status, text):
    node = started(vllm_alone(tmp_path, model, flags=[*FLAGS, *words]))
    assert node.wait_ended() == status
    assert text in node.text()


def test_parsers_follow_the_version(tmp_path, model, started):
    node = started(vllm_alone(tmp_path, model, LAB_ENGINE_VERSION="0.23.0"))
    assert node.wait_ended() == 1
    assert "Reasoning parser 'glm47' not found" in node.text()


def test_a_folder_without_a_model(tmp_path, started):
    node = started(vllm_alone(tmp_path, tmp_path / "none"))
    assert node.wait_ended() == 1
    assert "does not appear to have a file named config.json" in node.text()


def test_an_unknown_fault_is_told(tmp_path, model, started):
    node = started(vllm_alone(tmp_path, model, LAB_ENGINE_FAULT="no_such"))
    assert node.wait_ended() == 2
    assert "knows no fault 'no_such'" in node.text()


def test_memory_stays_small(tmp_path, model, started):
    node = started(vllm_alone(tmp_path, model))
    node.wait_ready()
    node.chat()
    for pid in (node.process.pid, *node.children()):
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(re.search(r"VmRSS:\s+(\d+)", status)[1]) < 30 * 1024


def sglang(folder, model, name, words, port, **env):
    words = ["--model-path", str(model), "--host", "127.0.0.1", "--port", str(port), "--tp-size", "16",
             "--tool-call-parser", "glm47", "--reasoning-parser", "glm45", "--served-model-name", "glm-5.1", *words]
    return EngineNode(folder / f"{name}.log", "sglang.launch_server", words, port, **env)


def test_sglang_on_two_nodes(tmp_path, model, started):
    meeting = free_port()
    rest = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{meeting}"]
    head = started(sglang(tmp_path, model, "s0", [*rest, "--node-rank", "0"], free_port()))
    head.wait_for("Starting server")
    assert head.get("/health")["status"] == 503
    worker = started(sglang(tmp_path, model, "s1", [*rest, "--node-rank", "1"], free_port()))
    head.wait_ready()
    worker.wait_ready()
    assert worker.get("/v1/models")["status"] == 404
    message = json.loads(head.chat()["body"])["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == "kestrel"
    ranks = [int(m["rank"]) for node in (head, worker) for m in re.finditer(SGLANG.bound, node.text())]
    assert sorted(ranks) == list(range(16))


def test_sglang_refuses_the_parser_name_of_vllm(tmp_path, model, started):
    node = started(sglang(tmp_path, model, "s", ["--reasoning-parser", "glm47"], free_port()))
    assert node.wait_ended() == 2
    assert "invalid choice: 'glm47'" in node.text()


def test_data_parallel_nodes_each_serve(tmp_path, model, started):
    rpc = free_port()
    words = [*FLAGS, "--enable-expert-parallel", "--data-parallel-hybrid-lb", "--data-parallel-size", "16",
             "--data-parallel-size-local", "8", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port",
             str(rpc)]
    head = started(vllm_node(tmp_path, model, "d0", words, free_port()))
    worker = started(vllm_node(tmp_path, model, "d1", [*words, "--data-parallel-start-rank", "8"], free_port()))
    head.wait_ready()
    worker.wait_ready()
    assert head.chat()["status"] == worker.chat()["status"] == 200


def test_a_key_is_asked_for(tmp_path, model, started):
    node = started(vllm_alone(tmp_path, model, VLLM_API_KEY="open-sesame"))
    node.wait_ready()
    assert node.chat()["status"] == 401
    assert node.get("/v1/models", headers={"Authorization": "Bearer open-sesame"})["status"] == 200
    assert node.get("/health")["status"] == 200
