"""The first cause of a failed start: lines of all nodes ordered in time, matched against known failures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

Lines = Sequence[tuple[float | None, str]]
"""Log lines of one node: seconds since the epoch when known, and the text."""


@dataclass(frozen=True)
class Known:
    """A known failure. `lies_in` is release, host or unknown; `echo` is 0 for
    a cause, 1 for an error whose words are not known, 2 for what follows from another failure."""

    key: str
    pattern: re.Pattern[str]
    what: str
    why: str
    mend: str
    lies_in: str = "release"
    echo: int = 0


@dataclass(frozen=True)
class Cause:
    """The first cause: where, when (seconds since the epoch), the line that shows it, what it means, what mends it."""

    key: str
    host: str
    what: str
    why: str = ""
    mend: str = ""
    evidence: str = ""
    at: float | None = None
    lies_in: str = "unknown"


def _known(key: str, pattern: str, what: str, why: str, mend: str, lies_in: str = "release", echo: int = 0
           ) -> Known:
    return Known(key, re.compile(pattern, re.I), what, why, mend, lies_in, echo)


KNOWN: tuple[Known, ...] = (
    _known("refused", r"a node at \S+ was refused", "a node was refused by the head", "the node's own lines say why",
           "look at the other nodes", "unknown", 2),
    _known("port", r"Address already in use|EADDRINUSE|port \d+ is (?:already )?(?:in use|taken)",
           "a port is taken", "another process listens on a port of this release",
           "end that process, or give the deployment another port", "host"),
    _known("memory.kv", r"No available memory for the cache blocks|Not enough memory.{0,40}(?:mem-fraction|static)|"
           r"larger than the maximum number of tokens that can be stored in KV cache",
           "no room is left for the KV cache", "weights and activations fill what the engine may take",
           "raise --gpu-memory-utilization (SGLang: --mem-fraction-static) or lower --max-model-len"),
    _known("memory.device", r"CUDA out of memory|OutOfMemoryError|HIP out of memory|NPU out of memory",
           "a device ran out of memory", "weights, KV cache and activations do not fit on the devices",
           "lower --gpu-memory-utilization or --chunked-prefill-size (KT: --kt-num-gpu-experts), or take a variant "
           "that fits: invoke plan"),
    _known("memory.host", r"\bMemoryError\b|Cannot allocate memory|oom-kill|Out of memory: Killed",
           "the host ran out of memory", "experts kept in host memory and page cache need more than is there",
           "free memory on the host, or keep fewer experts there", "host"),
    _known("parser", r"invalid (?:tool call|reasoning) parser|KeyError.{0,20}(?:glm|parser)|"
           r"(?:tool|reasoning)[-_ ]parser.{0,60}(?:not found|invalid choice)|invalid choice: 'glm\d+'",
           "the engine does not know a parser of this release", "parser names differ between engines and versions",
           "invoke plan shows the parser and the version it is chosen for"),
    _known("flag", r"error: (?:unrecognized arguments|argument |the following arguments)|unknown (?:flag|option)",
           "the engine does not take a flag of this release", "the flag belongs to another engine or version",
           "invoke plan shows each flag with its layer"),
    _known("model.type", r"does not recognize this architecture|model type `?glm_moe_dsa|KeyError: '?glm_moe_dsa",
           "the environment's transformers does not know glm_moe_dsa", "it is known from 5.2.0 on",
           "provision with an environment whose transformers is newer"),
    _known("library", r"lib[\w.+-]*\.so[\w.]*: cannot open shared object file|"
           r"(?:version|undefined symbol).{0,80}lib[\w.+-]*\.so|'_OpNamespace' '\w+' object has no attribute",
           "a library of the engine's compiled part cannot be loaded", "the host lacks it, or has another version",
           "install the package that holds it (libnuma.so.1: libnuma1), then start again", "host"),
    _known("compiler", r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler|Could not find nvcc|"
           r"(?:nvcc|ninja|g\+\+|gcc)\b.{0,40}(?:not found|No such file)",
           "the engine compiles while it serves and the host has no compiler",
           "torch.compile, Triton and FlashInfer build code at the first request that needs it",
           "install it (apt-get install g++), or TORCHDYNAMO_DISABLE=1 in deployment.env", "host"),
    _known("model.files", r"No such file or directory.{0,200}\.(?:safetensors|json|jinja|model|bin)\b|"
           r"does not appear to have a file|is not a valid model|Invalid repository ID or local directory|"
           r"Repo id must|Cannot find any model weights|SafetensorError|header too large|InvalidHeader|"
           r"incomplete metadata|(?:checkpoint|weights|model).{0,40}missing",
           "the model's files are not as the engine wants them",
           "a shard is cut, the folder is another, or the engines' account may not read it",
           "invoke preflight names the file (weights); chmod -R a+rX on the folder"),
    _known("deepgemm", r"DeepGEMM.{0,60}(?:not available|outdated|failed)|deep_gemm.{0,60}(?:Error|undefined symbol)",
           "DeepGEMM cannot be used", "the package does not fit torch, CUDA or Python of this environment",
           "invoke env.verify names the package"),
    _known("fabric", r"CUDA error 802|system not yet initialized|Error 802",
           "the NVLink fabric is not up", "the fabric manager does not run, or has another version than the driver",
           "systemctl status nvidia-fabricmanager", "host"),
    _known("driver", r"Driver/library version mismatch|CUDA driver version is insufficient|no kernel image is avail",
           "driver and CUDA of the environment do not go together", "see preflight: nvidia.library, nvidia.cuda",
           "invoke preflight", "host"),
    _known("device", r"CUDA error: (?:an illegal memory|uncorrectable ECC|device-side|unspecified launch)|Xid",
           "a device failed", "see the kernel log and nvidia-smi -q", "invoke preflight", "host"),
    _known("interface", r"Unable to find address for|No device with name|no socket interface found|"
           r"Bootstrap : no socket",
           "the network interface that was named is not there", "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME",
           "set cluster_address in the inventory, or mend the interface's name", "host"),
    _known("loopback", r"connectFullMesh.{0,400}(?:127\.\d+\.\d+\.\d+|\[::1\])|remote=\[?127\.",
           "nodes offer each other loopback addresses", "the host's own name resolves to 127.x in /etc/hosts, or "
           "GLOO_SOCKET_IFNAME names lo", "mend /etc/hosts (role host_names), or set cluster_address", "host"),
    _known("world", r"sizes differ:|world[_ ]size\b.{0,60}\b(?:does not match|mismatch|differs?|expected|but|is not)\b",
           "the nodes disagree about how many ranks there are", "their command lines come from different releases",
           "invoke status shows the release of each node"),
    _known("rank", r"rank \d+ (?:is |was |has )?(?:joined already|already|twice|taken|registered)|duplicate rank|"
           r"wrong rank|rank \d+ (?:is )?(?:out of|not in)\b",
           "a rank is there twice or is wrong", "an earlier worker is still up, or two nodes carry the same number",
           "invoke status; invoke stop, then start again"),
    _known("hccl", r"HCCL.{0,80}(?:timeout|TLS|EI0006|EI0015)|EI0006|EI0015", "the NPUs' links do not come up",
           "HCCL timed out or TLS differs between the nodes", "hccn_tool -i N -tls -g on both nodes", "host"),
    _known("nccl", r"NCCL (?:error|WARN)|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError",
           "NCCL cannot connect the ranks", "interface, RDMA device or firewall between the nodes",
           "invoke preflight (net, rdma)", "host"),
    _known("watchdog", r"watchdog.{0,60}(?:timeout|timed out|expired)", "the engine's own watchdog ended it",
           "a step took longer than --watchdog-timeout", "raise it, or look why the step is slow"),
    _known("silence", r"unbound_buffer\.cc:\d+\] Timed out waiting \d+ms for (?:send|recv)",
           "a rank that had joined was left without an answer", "its number is there twice (an earlier worker that is "
           "still up took its place), or the way between the nodes broke",
           "invoke preflight (process.ours names another's worker; net)", "host", 2),
    _known("rendezvous", r"\d+/\d+ clients joined|DistStoreError|timed out.{0,60}(?:rendezvous|waiting for .*clients)|"
           r"client socket has timed out|never met",
           "the nodes did not find each other", "a node did not start, or cannot reach the head's meeting point",
           "look at the other nodes; invoke preflight (names, ports)", "unknown", 2),
    _known("peer", r"Connection closed by peer|Connection reset by peer|Broken pipe|connectFullMesh|"
           r"peer (?:gone|lost|left)|head (?:is )?gone|lost (?:the )?(?:head|worker|connection)",
           "the connection between nodes broke", "another node ended first", "look at the other nodes", "unknown",
           2),
    _known("engine", r"Engine core initialization failed|EngineCore encountered an issue|EngineDeadError|"
           r"See root cause above",
           "the engine process ended", "its own lines say why", "look at the kept logs", "unknown", 2),
    _known("assertion", r"\b(?:RuntimeError|ValueError|AssertionError|NotImplementedError|KeyError|ImportError|"
           r"ModuleNotFoundError|OSError|TypeError|AttributeError)(?:: \S|$)",
           "the engine ended with an error of its own", "the line says which", "look at the kept logs", "unknown",
           1),
)


def first_cause(logs: Mapping[str, Lines], ended: Mapping[str, Mapping[str, object]]) -> Cause | None:
    """The first cause in the logs of one start, hosts in start order.

    Real causes come before errors whose words are not known, those before echoes of another failure; among equals the
    earlier comes first. Without a known line, the process that ended first is named with its last line. `ended` is
    each ended process's exit (code, signal, at).
    """
    found: list[tuple[int, float, int, int, int, Cause]] = []
    for order, (host, lines) in enumerate(logs.items()):
        for number, (at, text) in enumerate(lines):
            for place, known in enumerate(KNOWN):
                if known.pattern.search(text):
                    cause = Cause(known.key, host, known.what, known.why, known.mend, text.strip()[:400], at,
                                  known.lies_in)
                    found.append((max(known.echo, _weight(text)), at if at is not None else 0.0, order, number,
                                  place, cause))
                    break
    if found:
        return min(found, key=lambda item: item[:5])[5]
    return _first_end(logs, ended)


_MILD = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:|\w*Warning: ")
"""A line that its own process does not call an error."""


def _weight(text: str) -> int:
    """How much a line must yield, as `Known.echo`: an engine goes on behind its own warnings, all else comes first."""
    return 3 if _MILD.search(text) else 0


def _first_end(logs: Mapping[str, Lines], ended: Mapping[str, Mapping[str, object]]) -> Cause | None:
    if not ended:
        return None
    host = min(ended, key=lambda name: _at(ended[name]))
    last = next((text.strip() for _, text in reversed(list(logs.get(host, ()))) if text.strip()), "")
    return Cause("ended", host, f"the process ended {how_it_ended(ended[host])}",
                 "no line of its log is one that is known", "look at the kept logs", last[:400],
                 _at(ended[host]) or None)


def waited_for(cause: Cause, gaps: Sequence[str], ended: Mapping[str, object]) -> Cause:
    """The same cause on the node that the others waited for in vain, where the cause is such a wait.

    `gaps` are hosts whose ranks never joined (`gpu02: ranks 8-15 never joined`); those in `ended` gave up themselves.
    """
    silent = [gap.partition(": ") for gap in gaps if gap.partition(": ")[0] not in ended]
    if cause.key != "rendezvous" or not silent:
        return cause
    host, _, what = silent[0]
    others = [f"{other}: {said}" for other, _, said in silent[1:]]
    return replace(cause, host=host, what="; ".join((what, *others)),
                   why=f"{cause.host} waited for it in vain; its process is there and says nothing")


def _at(ended: Mapping[str, object]) -> float:
    at = ended.get("at")
    return float(at) if isinstance(at, (int, float)) else 0.0


def how_it_ended(ended: Mapping[str, object] | None) -> str:
    """An exit in words: `with status 7`, `by signal 9`, `(the host was rebooted)`."""
    if not ended:
        return "without leaving a status"
    if ended.get("reason"):
        return f"({ended['reason']})"
    if ended.get("signal"):
        return f"by signal {ended['signal']}"
    return f"with status {ended.get('code')}"
