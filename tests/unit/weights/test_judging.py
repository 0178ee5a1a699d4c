"""What hosts hold of a model, by the real host half over real files, and what is said of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_hub import COMMIT, OTHER, POINTER, safetensors, small_model, write

from bringup.agent.modules import model_weights
from bringup.agent.task import Failure, Task
from bringup.base.verdicts import Finding, Verdict
from bringup.weights.judging import broken_files, judge_equal, judge_host, same_revision
from bringup.weights.wanted import Weights


def manifest(folder: Path, **given: Any) -> dict[str, Any]:
    args = {name: spec.get("default") for name, spec in model_weights.ARGUMENTS.items()}
    args.update(path=str(folder), **given)
    found = model_weights.run(Task(args, root=str(folder.parent / "root")))
    return dict(json.loads(json.dumps(found)))


def findings(folder: Path, wanted: Weights | None = None, **given: Any) -> dict[str, Finding]:
    return {one.check: one for one in judge_host("gpu01", manifest(folder, **given), wanted)}


def test_a_whole_model_passes(tmp_path: Path) -> None:
    found = findings(write(tmp_path / "m", small_model()))
    assert {name: one.verdict for name, one in found.items()} == {"weights.complete": Verdict.PASS}
    assert found["weights.complete"].summary == "3 files of weights, 3.1 MB"


def test_c009_a_short_shard_and_a_pointer_text_are_named_with_sizes(tmp_path: Path) -> None:
    files = small_model()
    one, two, three = sorted(name for name in files if name.endswith(".safetensors"))
    files[two] = files[two][:-5]
    files[three] = POINTER
    found = findings(write(tmp_path / "m", files))["weights.complete"]
    text = " ".join((found.summary, *found.details))
    assert found.verdict is Verdict.FAIL and found.blocks
    assert f"{two}: 5 bytes short: {len(files[two]):,} of {len(files[two]) + 5:,}" in text
    assert f"{three}: a pointer text of a 5.4 GB file" in text and one not in text
    assert "weights.fetch" in str(found.mend)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == sorted(files)


def test_a_file_that_the_index_names_and_one_that_only_numbers_speak_of_are_missing(tmp_path: Path) -> None:
    files = small_model()
    gone = "model-00002-of-00003.safetensors"
    del files[gone]
    assert broken_files(manifest(write(tmp_path / "m", files))) == {gone: "is not there"}
    del files["model.safetensors.index.json"]
    assert broken_files(manifest(write(tmp_path / "n", files))) == {gone: "is not there"}


def test_c049_a_snapshot_of_a_hubs_cache_with_a_broken_link_and_stale_parts(tmp_path: Path) -> None:
    files = small_model(shards=2)
    cache = tmp_path / "models--demo--GLM-5.1"
    snapshot = cache / "snapshots" / COMMIT
    write(cache / "blobs", files)
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    (cache / "blobs" / "model-00002-of-00002.safetensors").unlink()
    for name, size in (("5fb9.incomplete", 990), ("5fb9.a1.incomplete", 2300)):
        (cache / "blobs" / name).write_bytes(bytes(size))
    found = findings(snapshot, Weights("demo/GLM-5.1", COMMIT))
    assert found["weights.complete"].verdict is Verdict.FAIL
    assert found["weights.complete"].summary.startswith("1 file of 2 in ")
    assert "model-00002-of-00002.safetensors: is not there" in found["weights.complete"].summary
    assert found["weights.revision"].verdict is Verdict.PASS
    assert found["weights.parts"].summary == "2 unfinished parts of cut-off downloads, 3.3 kB"
    assert (cache / "blobs" / "5fb9.incomplete").exists()


def test_files_of_two_revisions_are_told_by_their_tensors(tmp_path: Path) -> None:
    files = small_model()
    files["model-00002-of-00003.safetensors"] = safetensors({"layer.7.weight": bytes(1 << 20)})
    text = broken_files(manifest(write(tmp_path / "m", files)))["model-00002-of-00003.safetensors"]
    assert "lacks 1 tensor" in text


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": []}', b"\xff\xfe"])
def test_an_index_that_cannot_be_read_is_a_finding(tmp_path: Path, index: bytes) -> None:
    files = {**small_model(), "model.safetensors.index.json": index}
    assert "is no index" in broken_files(manifest(write(tmp_path / "m", files)))["model.safetensors.index.json"]


def test_a_folder_without_weights_and_one_that_is_not_there(tmp_path: Path) -> None:
    assert findings(tmp_path / "gone")["weights.present"].verdict is Verdict.FAIL
    empty = write(tmp_path / "m", {"config.json": b"{}"})
    assert findings(empty)["weights.complete"].summary == f"no weights in {empty}"
    lab = next(iter(judge_host("lab-head", manifest(empty), None, nothing_is_loaded=True)))
    assert lab.verdict is Verdict.NOTE


def test_another_revision_is_a_finding_and_an_unknown_one_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", small_model())
    wanted = Weights("a/b", COMMIT)
    assert findings(folder, wanted)["weights.revision"].verdict is Verdict.NOTE
    manifest(folder, action="record", revision=OTHER, repo="a/b")
    found = findings(folder, wanted)["weights.revision"]
    assert (found.verdict, found.required, found.found) == (Verdict.FAIL, COMMIT, OTHER)
    manifest(folder, action="record", revision=COMMIT, repo="a/b")
    assert findings(folder, wanted)["weights.revision"].verdict is Verdict.PASS


def test_c085_the_node_with_another_template_is_named(tmp_path: Path) -> None:
    files = small_model()
    folders = {host: write(tmp_path / host / "m", files) for host in ("node1", "node2", "node3", "node4")}
    (folders["node2"] / "chat_template.jinja").write_text("last month's")
    shutil.rmtree(folders["node3"])
    found = {host: manifest(folder) for host, folder in folders.items()}
    told = {one.subject: one for one in judge_equal(found)}
    assert told["node2"].verdict is Verdict.FAIL and "chat_template.jinja differs" in told["node2"].summary
    assert told["node1"].verdict is told["node4"].verdict is Verdict.PASS
    assert "node3" not in told and not found["node3"]["exists"]


def test_a_broken_file_is_told_once_and_not_again_as_different(tmp_path: Path) -> None:
    files = small_model()
    folders = {host: write(tmp_path / host / "m", files) for host in ("a", "b", "c")}
    shard = "model-00002-of-00003.safetensors"
    (folders["b"] / shard).write_bytes(files[shard][:-5])
    found = {host: manifest(folder) for host, folder in folders.items()}
    told = {one.subject: one.verdict for one in judge_equal(found)}
    assert told == {"a": Verdict.PASS, "c": Verdict.PASS}
    (folders["b"] / "config.json").write_text("{}")
    found["b"] = manifest(folders["b"])
    other = next(one for one in judge_equal(found) if one.subject == "b")
    assert other.summary == "config.json differs (as against a)" and other.details == ()


def test_a_readme_does_not_make_hosts_differ(tmp_path: Path) -> None:
    files = small_model()
    one, two = (manifest(write(tmp_path / name, {**files, "README.md": name.encode()})) for name in ("a", "b"))
    assert one["digest"] == two["digest"]
    assert {finding.verdict for finding in judge_equal({"a": one, "b": two})} == {Verdict.PASS}


def test_full_hashes_are_remembered_until_a_file_changes(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", small_model())
    lines: list[str] = []

    def full() -> dict[str, Any]:
        args = {name: spec.get("default") for name, spec in model_weights.ARGUMENTS.items()}
        args.update(path=str(folder), full=True)
        task = Task(args, root=str(tmp_path / "root"), line=lambda text, stream="stdout": lines.append(text))
        return dict(model_weights.run(task)["files"])

    shard = "model-00001-of-00003.safetensors"
    first = full()
    data = bytearray((folder / shard).read_bytes())
    data[-1] ^= 1
    (folder / shard).write_bytes(bytes(data))
    second = full()
    assert first[shard]["sha256"] != second[shard]["sha256"]
    assert {n: f["sha256"] for n, f in first.items() if n != shard} == {
        n: f["sha256"] for n, f in second.items() if n != shard}
    memory = next((tmp_path / "root/cache/weights").iterdir())
    known = json.loads(memory.read_text())
    known["config.json"][3] = "remembered"
    memory.write_text(json.dumps(known))
    assert full()["config.json"]["sha256"] == "remembered"


def test_a_changed_byte_is_found_by_the_recorded_digest_alone(tmp_path: Path) -> None:
    files = small_model()
    folder = write(tmp_path / "m", files)
    shard = "model-00001-of-00003.safetensors"
    digests = {name: one["sha256"] for name, one in manifest(folder, full=True)["files"].items()}
    manifest(folder, action="record", revision=COMMIT, repo="a/b", digests=digests)
    (folder / shard).write_bytes(files[shard][:-1] + bytes([files[shard][-1] ^ 1]))
    assert findings(folder)["weights.complete"].verdict is Verdict.PASS
    found = findings(folder, full=True)["weights.hashes"]
    assert found.verdict is Verdict.FAIL and shard in found.summary


def test_same_revision_judges_sound_files_alone(tmp_path: Path) -> None:
    files = small_model()
    entries = [{"path": name, "kind": "file", "size": len(data)} for name, data in files.items()]
    half = dict(list(files.items())[:2])
    half["model-00001-of-00003.safetensors"] = half["model-00001-of-00003.safetensors"][:100]
    found = manifest(write(tmp_path / "m", half))
    assert same_revision(found, entries, broken_files(found)) == []
    other = manifest(write(tmp_path / "n", small_model(size=999)))
    assert "model-00001-of-00003.safetensors" in same_revision(other, entries, {})
    more = manifest(write(tmp_path / "o", {**files, "extra.safetensors": safetensors({"x": b"1"})}))
    assert same_revision(more, entries, {}) == ["extra.safetensors"]


def test_a_nonce_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    args = {name: spec.get("default") for name, spec in model_weights.ARGUMENTS.items()}
    args.update(path="/proc/models/x", action="nonce", nonce="a")
    with pytest.raises(Failure, match="cannot write in /proc"):
        model_weights.run(Task(args, root=str(tmp_path)))
