"""Controller half of copy: the source is found and named by digest; the host asks for what it lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bringup.base.errors import StepError
from bringup.run.actions import Blob, Call, HostContext
from bringup.run.modules import sources


def copy_action(args: Mapping[str, Any], context: HostContext, /) -> Call:
    """The call of `copy` on the host. Raises StepError for a missing source or arguments that exclude each other."""
    src, content = args.get("src"), args.get("content")
    sent = {key: value for key, value in args.items() if value is not None and key != "content"}
    if not src and content is None:
        raise StepError("src (or content) is required", host=context.host)
    if src and content is not None:
        raise StepError("src and content are mutually exclusive", host=context.host)
    if content is not None:
        if str(args["dest"]).endswith("/"):
            raise StepError("can not use content with a dir as dest", host=context.host, found=str(args["dest"]))
        return text_call(sent, content_bytes(content), name="")
    if args.get("remote_src"):
        return Call("copy", sent)
    path = sources.find(str(src), "files", context.search, context.host)
    try:
        if path.is_dir():
            prefix = "" if str(src).endswith("/") else path.name
            tree, blobs = sources.tree_of(path, prefix, bool(args.get("local_follow", True)))
            return Call("copy", {**sent, "_tree": tree, "_source": str(path)}, blobs=blobs)
        made, blob = sources.entry_of(path, path.name)
    except OSError as error:
        raise StepError(f"cannot read {error.filename or path}: {error.strerror or error}",
                        host=context.host) from None
    return Call("copy", {**sent, "_file": made, "_source": str(path)}, blobs=[blob])


def text_call(args: Mapping[str, Any], data: bytes, *, name: str, source: str | None = None) -> Call:
    """A call of `copy` for a content in memory. `name` is what the file is called where `dest` is a folder."""
    digests = sources.digests_of(data)
    sent = {**args, "_file": sources.entry(name, digests), "_source": source}
    if not name:
        # the host half refuses a folder as dest for a text
        sent["content"] = ""
    return Call("copy", sent, blobs=[Blob(digests.sha256, digests.size, data)])


def content_bytes(content: Any) -> bytes:
    """The bytes of `content:`; a mapping or list becomes JSON."""
    if isinstance(content, (dict, list, tuple)):
        return json.dumps(content).encode()
    return str(content).encode("utf-8", "surrogateescape")
