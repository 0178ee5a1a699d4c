"""Controller half of template: rendered here, put on the host as copy puts a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.base.errors import StepError
from bringup.run.actions import Call, HostContext
from bringup.run.modules import sources
from bringup.run.modules.copy import text_call

_NEWLINES = {"\\n": "\n", "\\r": "\r", "\\r\\n": "\r\n"}


def template_action(args: Mapping[str, Any], context: HostContext, /) -> Call:
    """The call of `copy` on the host. Raises StepError for a missing or unreadable template."""
    path = sources.find(str(args["src"]), "templates", context.search, context.host)
    if path.is_dir():
        raise StepError("a template must be a file", host=context.host, found=str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise StepError(f"cannot read {path}: {error.strerror or error}", host=context.host) from None
    except UnicodeDecodeError as error:
        raise StepError(f"{path} is not UTF-8 text (byte {error.start})", host=context.host) from None
    rendered = context.template(text, path)
    newline = str(args.get("newline_sequence") or "\n")
    newline = _NEWLINES.get(newline, newline)
    if newline != "\n":
        rendered = rendered.replace("\r\n", "\n").replace("\n", newline)
    encoding = str(args.get("output_encoding") or "utf-8")
    try:
        data = rendered.encode(encoding)
    except (LookupError, UnicodeEncodeError) as error:
        raise StepError(f"the rendered template cannot be written as {encoding}: {error}", host=context.host) from None
    kept = ("dest", "mode", "owner", "group", "backup", "force", "validate", "follow")
    sent = {key: args[key] for key in kept if args.get(key) is not None}
    return text_call(sent, data, name=path.name, source=str(path))
