"""How the agent gets to a host: its sources packed, and the line that starts Python on them. Python 3.6.

Nothing is written on the host: the packed sources come over standard input and are imported from memory. The core
goes with the start; the files of modules follow as `source` frames when a task needs them.
"""

import os
import re
import zlib

CORE = ("blobs", "bootstrap", "builtins", "elevate", "frames", "journal", "lock", "loop", "main", "processes", "task",
        "wire", "worker")
"""The files of this package that every session needs."""

_LOADER = '''
import sys
from importlib.machinery import ModuleSpec
class Memory(object):
    def __init__(self, sources):
        self.sources = sources
    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        return ModuleSpec(name, self, origin="<agent>/" + name, is_package=name in PACKAGES)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.sources[name], "<agent>/" + name, "exec", 0, True), module.__dict__)
    def get_source(self, name):
        return self.sources.get(name)
sys.meta_path.insert(0, Memory(SOURCES))
from bringup.agent.main import main
main(M, SOURCES, PAYLOAD)
'''

PACKAGES = ("bringup", "bringup.agent", "bringup.agent.modules")

_cache = {}


def token():
    """A fresh random text: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def folder():
    """Where the agent's files lie on the controller."""
    return os.path.dirname(os.path.abspath(__file__))


def source(name):
    """The text of a file of this package: `frames`, `modules.copy`. Raises OSError."""
    key = ("source", name)
    if key not in _cache:
        path = os.path.join(folder(), *name.split("."))
        with open(path + ".py", "rb") as handle:
            _cache[key] = handle.read().decode("utf-8")
    return _cache[key]


def payload():
    """The packed core, the same bytes for the same files. Kept for the life of the process."""
    if "payload" not in _cache:
        texts = [("bringup", ""), ("bringup.agent", ""), ("bringup.agent.modules", "")]
        texts += [("bringup.agent." + name, source(name)) for name in sorted(CORE)]
        text = "PACKAGES = %r\nSOURCES = {\n%s}\n%s" % (
            PACKAGES, "".join("%r: %r,\n" % pair for pair in texts), _LOADER)
        _cache["payload"] = zlib.compress(text.encode("utf-8"), 9)
    return _cache["payload"]


def line(marker, size, ready=None):
    """The Python text (one line, no single quotes) that reads `size` bytes of agent from standard input.

    `marker` comes out before the first frame. `ready` comes out before anything is read (a child under sudo, where
    the password may be asked for first).
    """
    first = 'import os;os.write(1,b"%s");' % ready if ready else ""
    return ('import sys,io,zlib;sys.version_info<(3,6) and sys.exit("python %%d.%%d is older than 3.6"%%sys.version_info'
            '[:2]);%sM="%s";PAYLOAD=io.BufferedReader(io.FileIO(0,closefd=False),1).read(%d);'
            'exec(zlib.decompress(PAYLOAD).decode())' % (first, marker, size))


CANDIDATES = ("/usr/bin/python3", "python3", "/usr/libexec/platform-python", "python3.13", "python3.12", "python3.11",
              "python3.10", "python3.9", "python3.8", "python3.7", "python3.6", "/usr/local/bin/python3",
              "/opt/python/bin/python3", "python")
"""Where a Python is looked for on a host, in this order; the system's own comes first: it needs no start-up files."""

_FIND = ('c=$1;m=$2;w=$3;shift 3;for p in "$@";do if command -v "$p" >/dev/null 2>&1;then exec "$p" -SIE -c "$c";fi;done;'
         'echo "$m-none";for d in $(echo "$PATH"|tr : " ") /usr/local/bin /opt/*/bin "$HOME"/.pyenv/versions/*/bin;'
         'do for f in "$d"/python[23]* "$d"/python;do [ -x "$f" ] && echo "$m-found $f";done;done;exit 127')


def command(marker, python=None, extra=()):
    """The command line for the host's shell: finds a Python (or takes the one named) and starts the agent.

    Where there is none, `MARKER-none` and lines of `MARKER-found PATH` come out instead.
    """
    code = line(marker, len(payload()))
    candidates = (python,) if python else CANDIDATES + tuple(extra)
    words = ["exec", "/bin/sh", "-c", _quoted(_FIND), "sh", _quoted(code), marker, "-"]
    return " ".join(words + [_quoted(item) for item in candidates])


def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


_MENTION = re.compile(r"bringup\.agent(?:\.modules)?(?: import |\.)([A-Za-z_][\w.]*(?:\s*,\s*\w+)*)")


def sources_for(module):
    """The files that a module on the host needs and the core does not hold: a list of (full name, text).

    Raises OSError when there is no such module.
    """
    key = ("for", module)
    if key not in _cache:
        found = {}
        _collect("modules." + module, found)
        _cache[key] = sorted(found.items())
    return _cache[key]


def _collect(name, found):
    full = "bringup.agent." + name
    if full in found:
        return
    text = source(name)
    found[full] = text
    for match in _MENTION.finditer(text):
        in_modules = match.group(0).startswith("bringup.agent.modules")
        for word in match.group(1).replace(" ", "").split(","):
            first = word.split(".")[0]
            wanted = "modules." + first if in_modules else first
            if wanted in CORE or wanted == "modules":
                continue
            if os.path.isfile(os.path.join(folder(), *wanted.split(".")) + ".py"):
                _collect(wanted, found)
