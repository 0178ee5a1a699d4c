"""From what hosts hold of a model to findings: present, whole, of the revision that is wanted, equal on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bringup.base.text import plural, size
from bringup.base.verdicts import Finding, Verdict
from bringup.weights.wanted import Weights

FETCH = "invoke weights.fetch"

Manifest = Mapping[str, Any]
"""What the host half of `model_weights` says of a folder."""


def trouble(one: Mapping[str, Any]) -> str:
    """What is wrong with one file, empty when nothing is."""
    have, want = one.get("size"), one.get("expected")
    if one.get("pointer"):
        of = f" of a {size(int(want))} file" if want else ""
        return f"a pointer text{of}, not weights: cloned without git-lfs"
    if one.get("error") == "missing":
        return "is not there"
    if one.get("error"):
        return f"{one['error']} ({have} bytes)" if have is not None else str(one["error"])
    if have is not None and want is not None and int(have) != int(want):
        word = "short" if int(have) < int(want) else "too long"
        return f"{abs(int(want) - int(have)):,} bytes {word}: {int(have):,} of {int(want):,}"
    if one.get("lacks"):
        return f"lacks {plural(int(one['lacks']), 'tensor')} that the index places there: files of two revisions"
    return ""


def broken_files(manifest: Manifest) -> dict[str, str]:
    """Files that are missing or cannot be right, each with what is wrong."""
    out = dict.fromkeys(map(str, manifest.get("missing", ())), "is not there")
    for name, one in manifest.get("files", {}).items():
        text = trouble(one)
        if text:
            out[name] = text
    if manifest.get("index_error"):
        out[str(manifest["index"])] = f"is no index: {manifest['index_error']}"
    return dict(sorted(out.items()))


def weight_files(manifest: Manifest) -> list[str]:
    """Names of the files that hold weights."""
    return [name for name in manifest.get("files", {}) if name.endswith((".safetensors", ".gguf", ".bin"))]


def judge_host(host: str, manifest: Manifest, wanted: Weights | None, *, nothing_is_loaded: bool = False
               ) -> Iterator[Finding]:
    """The findings on one host. `nothing_is_loaded` is the lab: its engine reads the configuration alone."""
    path = str(manifest["path"])
    if not manifest.get("exists"):
        yield Finding("weights.present", host, Verdict.FAIL, f"{path} is not there", mend=FETCH)
    else:
        yield _complete(host, manifest, nothing_is_loaded)
        yield from _revision(host, manifest, wanted)
        yield from _hashes(host, manifest)
    left = manifest.get("parts") or []
    if left:
        total = sum(int(one["size"]) for one in left)
        yield Finding("weights.parts", host, Verdict.WARN,
                      f"{plural(len(left), 'unfinished part')} of cut-off downloads, {size(total)}",
                      details=tuple(f"{one['name']}  {size(int(one['size']))}" for one in left[:6]),
                      mend=f"{FETCH} goes on with its own; remove others when no download runs")


def _complete(host: str, manifest: Manifest, nothing_is_loaded: bool) -> Finding:
    path, bad, weights = str(manifest["path"]), broken_files(manifest), weight_files(manifest)
    if bad:
        lines = [f"{name}: {text}" for name, text in bad.items()]
        return Finding("weights.complete", host, Verdict.FAIL,
                       f"{plural(len(bad), 'file')} of {len(weights) + len(manifest.get('missing', ()))} in {path}: "
                       f"{lines[0]}", details=tuple(lines[1:9]),
                       mend=f"{FETCH}  (brings these again; nothing is removed)", data={"files": bad})
    if not weights:
        verdict = Verdict.NOTE if nothing_is_loaded else Verdict.FAIL
        return Finding("weights.complete", host, verdict, f"no weights in {path}" + (
            "; the lab engine loads none" if nothing_is_loaded else ""), mend=None if nothing_is_loaded else FETCH)
    if "config.json" not in manifest["files"]:
        return Finding("weights.complete", host, Verdict.FAIL, f"no config.json in {path}", mend=FETCH)
    return Finding("weights.complete", host, Verdict.PASS,
                   f"{plural(len(weights), 'file')} of weights, {size(int(manifest['bytes']))}")


def _revision(host: str, manifest: Manifest, wanted: Weights | None) -> Iterator[Finding]:
    if wanted is None or not wanted.revision:
        return
    found = manifest.get("revision")
    if found is None:
        yield Finding("weights.revision", host, Verdict.NOTE,
                      f"nothing in {manifest['path']} says which revision it is", required=wanted.revision)
    elif found != wanted.revision:
        yield Finding("weights.revision", host, Verdict.FAIL, f"{manifest['path']} is another revision",
                      required=wanted.revision, found=str(found), source="weights.revision of the deployment",
                      mend=f"{FETCH} brings it beside; then name that folder in model_path")
    else:
        yield Finding("weights.revision", host, Verdict.PASS, f"{found[:12]}, as the deployment says")


def _hashes(host: str, manifest: Manifest) -> Iterator[Finding]:
    """Digests of whole files against those recorded when they came."""
    recorded: Mapping[str, str] = (manifest.get("record") or {}).get("digests") or {}
    full = {name: one["sha256"] for name, one in manifest["files"].items()
            if one.get("sha256") and name.endswith((".safetensors", ".gguf", ".bin"))}
    if not full:
        return
    broken = broken_files(manifest)
    odd = sorted(name for name, digest in full.items() if recorded.get(name, digest) != digest and name not in broken)
    if odd:
        yield Finding("weights.hashes", host, Verdict.FAIL,
                      f"{plural(len(odd), 'file')} not as the hub named {'it' if len(odd) == 1 else 'them'}: {odd[0]}",
                      details=tuple(odd[1:9]), mend=f"{FETCH} --full", data={"files": dict.fromkeys(odd, "differs")})
    else:
        known = sum(1 for name in full if name in recorded)
        yield Finding("weights.hashes", host, Verdict.PASS,
                      f"{plural(len(full), 'file')} hashed, {known} as the hub named them")


def judge_equal(manifests: Mapping[str, Manifest]) -> Iterator[Finding]:
    """All hosts that have the folder against the majority; the file that differs is named."""
    there = {host: one for host, one in manifests.items() if one.get("exists")}
    if len(there) < 2:
        return
    digests = Counter(str(one["digest"]) for one in there.values())
    # among equals the digest of the first host counts, whatever the order of hashing
    usual = max(digests, key=lambda digest: digests[digest])
    model = next(one for one in there.values() if one["digest"] == usual)
    like = next(host for host, one in there.items() if one["digest"] == usual)
    for host, one in there.items():
        broken = broken_files(one)
        odd = [f"{name} {word}" for name, word in _differences(one, model) if name not in broken]
        if not odd and broken:
            continue  # each is told by weights.complete
        if odd:
            yield Finding("weights.equal", host, Verdict.FAIL, f"{odd[0]} (as against {like})", details=tuple(odd[1:6]),
                          source="one model on all nodes", mend="bring the folder of the host that is right: "
                          "another template or configuration answers otherwise")
        else:
            yield Finding("weights.equal", host, Verdict.PASS, f"the same on {plural(digests[usual], 'host')}")


def _differences(one: Manifest, other: Manifest) -> list[tuple[str, str]]:
    """Files that are not the same, each with how."""
    out = []
    for name in sorted({*one["files"], *other["files"]}):
        here, there = one["files"].get(name), other["files"].get(name)
        if here is None or there is None:
            if _counts(name):
                out.append((name, "is missing" if here is None else "is here alone"))
        elif _mark(name, here) != _mark(name, there):
            out.append((name, "differs"))
    return out


def _counts(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".bin", ".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"))


def _mark(name: str, one: Mapping[str, Any]) -> Sequence[Any]:
    if not _counts(name):
        return ()
    return (one.get("header"), one.get("size"), one.get("sha256") if "blob" in one else None,
            one.get("sha256") if one.get("header") and one.get("sha256") else None)


def same_revision(manifest: Manifest, entries: Sequence[Mapping[str, Any]], broken: Mapping[str, str]) -> list[str]:
    """Sound files of a folder that are not those of the list: it is another revision. Empty when it is this one.

    Broken and missing files say nothing; small files are compared by their content, weights by their size.
    """
    odd = []
    wanted = {str(entry["path"]): entry for entry in entries if entry.get("kind") == "file"}
    for name, one in manifest.get("files", {}).items():
        entry = wanted.get(name)
        if entry is None:
            if name.endswith(".safetensors"):
                odd.append(name)
            continue
        if name in broken or not _counts(name):
            continue
        named = [(one[kind], entry[kind]) for kind in ("sha256", "blob") if one.get(kind) and entry.get(kind)]
        if one.get("size") != entry["size"] or any(here != there for here, there in named):
            odd.append(name)
    return sorted(odd)
