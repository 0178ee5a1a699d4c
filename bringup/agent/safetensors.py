"""A file of weights by its own header, without reading the weights. Python 3.6."""

import errno
import hashlib
import json
import os
import re
import struct

HEADER_LIMIT = 100 * 1024 * 1024
"""Bytes: the safetensors format allows no longer header."""

_POINTER = b"version https://git-lfs"


def shard(path, tensors=()):
    """Size on disk against 8 bytes of length, the header, and the end of the last tensor, as a dict.

    size; expected (bytes that the header, or a pointer text, says); header (SHA-256 of it); pointer; error; lacks: how
    many of `tensors` the header does not name.
    """
    try:
        size = os.stat(path).st_size
    except OSError as error:
        return {"error": "missing" if error.errno == errno.ENOENT else error.strerror}
    one = {"size": size}
    try:
        with open(path, "rb") as handle:
            head = handle.read(512)
            if head.startswith(_POINTER):
                one["pointer"] = True
                match = re.search(br"\nsize (\d+)", head)
                if match:
                    one["expected"] = int(match.group(1))
                return one
            if len(head) < 8:
                one["error"] = "shorter than a header"
                return one
            length = struct.unpack("<Q", head[:8])[0]
            if length > HEADER_LIMIT or length < 2:
                one["error"] = "no safetensors header"
                return one
            handle.seek(8)
            raw = handle.read(length)
        if len(raw) < length:
            one["error"] = "ends inside its header"
            one["expected"] = 8 + length
            return one
        one["header"] = hashlib.sha256(raw).hexdigest()
        named = json.loads(raw.decode("utf-8"))
        ends = [entry["data_offsets"][1] for name, entry in named.items() if name != "__metadata__"]
        one["expected"] = 8 + length + (max(ends) if ends else 0)
        lacks = sum(1 for name in tensors if name not in named)
        if lacks:
            one["lacks"] = lacks
    except OSError as error:
        one["error"] = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        one["error"] = "header is not readable"
    return one
