"""How the agent gets to a host: its sources packed, and the line that starts Python on them. Python 3.6.

Nothing is written on the host: the packed sources come over standard input and are imported from memory. The core
goes with the start; the files of modules follow as `source` frames when a task needs them.
"""

import os
import re
import zlib

if False:  # for type checkers alone: importing it costs a host time
    from typing import Any

CORE = ("blobs", "bootstrap", "builtins", "elevate", "frames", "journal", "lock", "loop", "main", "pids", "task",
        "tasks", "wire", "worker")
"""The files of this package that every session needs."""

_LOADER = '''
import sys, marshal
from importlib.machinery import ModuleSpec
D = R.read(%d)
SOURCES = marshal.loads(zlib.decompress(D))
class Memory(object):
    def find_spec(self, name, path=None, target=None):
        key = name if name in SOURCES else name + ".__init__"
        if key not in SOURCES:
            return None
        return ModuleSpec(name, self, origin="<agent>/" + key, is_package=key != name, loader_state=key)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        key = module.__spec__.loader_state
        code = SOURCES[key]
        if isinstance(code, str):
            code = compile(code, "<agent>/" + key, "exec", 0, True)
        exec(code, module.__dict__)
    def get_source(self, name):
        text = SOURCES.get(name, SOURCES.get(name + ".__init__"))
        return text if isinstance(text, str) else None
sys.meta_path.insert(0, Memory())
from bringup.agent.main import main
main(M, SOURCES, H + P + D)
'''

PACKAGES = ("bringup.__init__", "bringup.agent.__init__", "bringup.agent.modules.__init__")

_cache = {}  # type: dict[object, Any]


def token() -> str:
    """A fresh random text: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def folder() -> str:
    """Where the agent's files lie on the controller."""
    return os.path.dirname(os.path.abspath(__file__))


def source(name: str) -> str:
    """The text of a file of this package: `frames`, `modules.copy`. Raises OSError."""
    key = ("source", name)
    if key not in _cache:
        path = os.path.join(folder(), *name.split("."))
        with open(path + ".py", "rb") as handle:
            _cache[key] = handle.read().decode("utf-8")
    return str(_cache[key])


def own_magic() -> str:
    """The number of this Python's byte code, as hosts report theirs."""
    import importlib.util

    return importlib.util.MAGIC_NUMBER.hex()


def compiled(name: str) -> "Any":
    """The code object of a file of this package, from Python's own cache where it is fresh."""
    key = ("code", name)
    if key not in _cache:
        from importlib.machinery import SourceFileLoader

        full = "bringup.agent." + name
        path = os.path.join(folder(), *name.split(".")) + ".py"
        _cache[key] = SourceFileLoader(full, path).get_code(full)
    return _cache[key]


def payload(magic: "str | None" = None) -> "Any":
    """The packed core, the same bytes for the same files; kept for the life of the process.

    With the byte-code number of the host's Python it holds code when that is ours too, which spares the host the
    compiling; otherwise, and without one, it holds the sources, which every Python from 3.6 on takes.
    """
    code = magic is not None and magic == own_magic()
    key = ("payload", code)
    if key not in _cache:
        import marshal

        texts = dict.fromkeys(PACKAGES, "")  # type: dict[str, Any]
        for name in sorted(CORE):
            texts["bringup.agent." + name] = compiled(name) if code else source(name)
        packed = zlib.compress(marshal.dumps(texts) if code else marshal.dumps(texts, 2), 1 if code else 9)
        loader = zlib.compress((_LOADER % len(packed)).encode("utf-8"), 9)
        _cache[key] = b"%08x" % len(loader) + loader + packed
    return _cache[key]


def line(marker: str) -> str:
    """The Python text (one line, no single quotes) that says its byte-code number and reads the agent.

    What it says first is `MARKER? NUMBER`: nothing was read before that, so that a child under sudo can be given its
    password first. The agent then says MARKER on a line of its own before its first frame.
    """
    return ('import sys,os,io,zlib;'
            'sys.version_info<(3,6) and sys.exit("python %%d.%%d is older than 3.6"%%sys.version_info[:2]);'
            'import _frozen_importlib_external as f;M="%s";os.write(1,(M+"? "+f.MAGIC_NUMBER.hex()+"\\n").encode());'
            'R=io.BufferedReader(io.FileIO(0,closefd=False),1);H=R.read(8);P=R.read(int(H,16));'
            'exec(zlib.decompress(P).decode())' % marker)


CANDIDATES = ("/usr/bin/python3", "python3", "/usr/libexec/platform-python", "python3.13", "python3.12", "python3.11",
              "python3.10", "python3.9", "python3.8", "python3.7", "python3.6", "/usr/local/bin/python3",
              "/opt/python/bin/python3", "python")
"""Where a Python is looked for on a host, in this order; the system's own comes first: it needs no start-up files."""

_FIND = ('c=$1;m=$2;shift 2;[ -n "$LC_ALL$LC_CTYPE$LANG" ] || export LC_CTYPE=C.UTF-8;'
         'for p in "$@";do if command -v "$p" >/dev/null 2>&1;then exec "$p" -SIE -c "$c";fi;done;'
         'echo "$m-none";for d in $(echo "$PATH"|tr : " ") /usr/local/bin /opt/*/bin "$HOME"/.pyenv/versions/*/bin;'
         'do for f in "$d"/python[23]* "$d"/python;do [ -x "$f" ] && echo "$m-found $f";done;done;exit 127')


def command(marker: str, python: "str | None" = None, extra: "tuple[str, ...]" = ()) -> str:
    """The command line for the host's shell: finds a Python (or takes the one named) and starts the agent.

    Where there is none, `MARKER-none` and lines of `MARKER-found PATH` come out instead.
    """
    code = line(marker)
    candidates = (python,) if python else CANDIDATES + tuple(extra)
    words = ["exec", "/bin/sh", "-c", _quoted(_FIND), "sh", _quoted(code), marker]
    return " ".join(words + [_quoted(item) for item in candidates])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_MENTION = re.compile(r"\bbringup\.agent((?:\.\w+)*)(?: import (?:\(([\w\s,]+)\)|([\w ,]+)))?")


def needed_by(module: str) -> "list[str]":
    """The files that a module on the host needs and the core does not hold: their names, `modules.copy` and the like.

    Raises OSError when there is no such module.
    """
    key = ("for", module)
    if key not in _cache:
        found = []  # type: list[str]
        _collect("modules." + module, found)
        _cache[key] = found
    return list(_cache[key])


def _collect(name: str, found: "list[str]") -> None:
    if name in found:
        return
    text = source(name)
    found.append(name)
    for match in _MENTION.finditer(text):
        parts = match.group(1).split(".")[1:]
        mentioned = [parts[:end] for end in range(1, len(parts) + 1)]
        mentioned += [parts + [word] for word in (match.group(2) or match.group(3) or "").replace(",", " ").split()]
        for item in mentioned:
            for wanted in (".".join(item), ".".join(item + ["__init__"])):
                if wanted in CORE or wanted == "modules.__init__" or wanted in found:
                    continue
                if os.path.isfile(os.path.join(folder(), *wanted.split(".")) + ".py"):
                    _collect(wanted, found)


def packed(name: str, magic: "str | None" = None) -> "Any":
    """One file for a `source` frame: its text, or its code when the host's byte code is ours, packed."""
    code = magic is not None and magic == own_magic()
    key = ("packed", name, code)
    if key not in _cache:
        import base64
        import marshal

        data = zlib.compress(marshal.dumps(compiled(name)) if code else source(name).encode("utf-8"), 1 if code else 9)
        kind = "code" if code else "text"
        _cache[key] = {"name": "bringup.agent." + name, kind: base64.b64encode(data).decode("ascii")}
    return _cache[key]


def unpacked(message: "dict[str, str]") -> object:
    """On the host: what packed() made, as the importer takes it."""
    import binascii
    import marshal

    if "code" in message:
        return marshal.loads(zlib.decompress(binascii.a2b_base64(message["code"])))
    return zlib.decompress(binascii.a2b_base64(message["text"])).decode("utf-8")
