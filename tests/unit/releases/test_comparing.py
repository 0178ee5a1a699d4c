"""What `plan --running` calls a difference of a host's values."""

from __future__ import annotations

from bringup.releases.comparing import Difference, compare
from bringup.releases.document import Release
from bringup.releases.history import HostStore

RELEASE = Release({"served_name": "glm", "world_size": 1, "replicas": []}, {})
ROOT = {"root": "/opt/bringup", "env": "/opt/bringup/envs/a"}


def told(before: dict[str, str], now: dict[str, str]) -> Difference:
    digest = RELEASE.digest
    events = [{"event": event, "digest": digest, "at": float(at), "number": 1}
              for at, event in enumerate(("made", "switched", "started", "good"), 1)]
    store = HostStore(digest, {digest: RELEASE}, {}, {digest: {"r1-gpu01": {"values": {**ROOT, **before}}}}, events)
    return compare(RELEASE, {"gpu01": {**ROOT, **now}}, {"gpu01": store})


def test_another_toolkit_is_a_difference_and_what_an_older_launch_did_not_know_is_none() -> None:
    other = told({"cuda_home": "/usr/local/cuda-12.8"}, {"cuda_home": "/usr/local/cuda-13.0"})
    assert other.values == (("gpu01", "cuda_home /usr/local/cuda-12.8 -> /usr/local/cuda-13.0"),) and not other.same
    assert told({}, {"cuda_home": "/usr/local/cuda-13.0"}).same
    assert told({"image": "glm:1"}, {"image": "glm@sha256:1", "image_digest": "sha256:1"}).same
    assert not told({"--host": "10.0.0.1"}, {"--host": "10.0.0.2"}).same
