"""Settings that are files: names in /etc/hosts, limits of accounts and units, the size of /dev/shm."""

import os
import re
import socket

from bringup.agent.modules import _files
from bringup.agent.modules._settings import Setting, container
from bringup.agent.task import Failure

HOSTS = "/etc/hosts"


class Names(Setting):
    """Every name of the cluster stands in /etc/hosts with its cluster address, the own name on no loopback line."""

    name = "names"

    def addresses(self):
        """name -> address, with this system's own name beside its inventory name."""
        wanted = {str(name): str(value) for name, value in (self.task.args.get("addresses") or {}).items()}
        own = socket.gethostname()
        for name in list(wanted):
            if name.split(".")[0] == own.split(".")[0]:
                wanted.setdefault(own, wanted[name])
        for name, address in wanted.items():
            if not _is_address(address):
                raise Failure("the address of %s is none: %s" % (name, address), expected="an IP address",
                              next="set cluster_address of %s in the inventory" % name)
        return with_aliases(self.text(HOSTS, ""), wanted)

    def missing(self):
        if self.text(HOSTS) is None:
            return "there is no /etc/hosts"
        if not self.task.args.get("addresses"):
            return "no addresses were given"
        if not self.place and os.path.ismount(HOSTS):
            return "/etc/hosts is put here from outside (a container's): change it there"
        return None

    def wrong(self):
        out = []
        found = _names(self.text(HOSTS, ""))
        for name, address in sorted(self.addresses().items()):
            lines = found.get(name, [])
            for number, other in lines:
                if other != address:
                    out.append("/etc/hosts:%d says %s for %s, not %s" % (number, other, name, address))
            if not lines:
                out.append("/etc/hosts does not name %s" % name)
        return out

    def before(self):
        return {"hosts": self.text(HOSTS), "written": edited(self.text(HOSTS), self.addresses())}

    def diff(self):
        return _files.text_diff(HOSTS, self.text(HOSTS, "").encode("utf-8", "surrogateescape"),
                                edited(self.text(HOSTS, ""), self.addresses()).encode("utf-8", "surrogateescape"))

    def apply(self):
        self.write(HOSTS, edited(self.text(HOSTS, ""), self.addresses()))

    def restore(self, kept):
        if self.text(HOSTS, "") != kept["written"]:
            raise Failure("/etc/hosts was edited since it was changed here: it is left alone", path=HOSTS,
                          next="put back by hand what is kept under `hosts`")
        self.put_back(HOSTS, kept["hosts"])


def _is_address(text):
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
            return True
        except (OSError, ValueError):
            pass
    return False


def _names(text):
    """name -> [(line number, address)] of a hosts file."""
    out = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        for name in words[1:]:
            out.setdefault(name, []).append((number, words[0]))
    return out


def with_aliases(text, addresses):
    """The addresses, and for each name also its longer forms (gpu01.site) that stand on a loopback line."""
    out = dict(addresses)
    short = {name.split(".")[0]: address for name, address in addresses.items()}
    for name, places in _names(text).items():
        if any(_is_loopback(address) for _, address in places) and name.split(".")[0] in short:
            out.setdefault(name, short[name.split(".")[0]])
    return out


def _is_loopback(address):
    return address.startswith("127.") or address == "::1"


def edited(text, addresses):
    """The hosts file with every name of `addresses` at its address and nowhere else; other names and lines stay.

    A line left without names becomes the line of the name that it lost.
    """
    out, placed = [], set()
    addresses = with_aliases(text, addresses)
    for line in text.splitlines():
        body, mark, comment = line.partition("#")
        words = body.split()
        keep = [word for word in words[1:] if addresses.get(word, words[0]) == words[0]]
        placed.update(word for word in keep if word in addresses)
        if len(keep) == len(words) - 1 or not words:
            out.append(line)
            continue
        lost = [word for word in words[1:] if word not in keep]
        if keep:
            out.append(" ".join([words[0]] + keep) + (" #" + comment if mark else ""))
        elif mark:
            out.append("#" + comment)
        moved = [word for word in lost if word not in placed and not _elsewhere(text, word, addresses[word])]
        for address in dict.fromkeys(addresses[word] for word in moved):
            names = [word for word in moved if addresses[word] == address]
            out.append(" ".join([address] + names))
            placed.update(names)
    for name in sorted(addresses):
        if name not in placed and not _elsewhere(text, name, addresses[name]):
            out.append("%s %s" % (addresses[name], name))
    return "\n".join(out) + "\n"


def _elsewhere(text, name, address):
    return any(found == address for _, found in _names(text).get(name, []))


LIMITS_FILE = "/etc/security/limits.d/90-bringup.conf"
SYSTEMD_FILE = "/etc/systemd/system.conf.d/90-bringup.conf"
OPEN_FILES = 1048576
_LIMITS = ("# memory that RDMA pins, and sockets and shards that engines hold open\n"
           "* soft memlock unlimited\n* hard memlock unlimited\n"
           "root soft memlock unlimited\nroot hard memlock unlimited\n"
           "* soft nofile {0}\n* hard nofile {0}\nroot soft nofile {0}\nroot hard nofile {0}\n").format(OPEN_FILES)
_SYSTEMD = "[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=%d\n" % OPEN_FILES


def may_raise_limits():
    """Whether root here has CAP_SYS_RESOURCE, bit 24 of the capabilities: without it a session keeps lower limits."""
    with open("/proc/self/status") as source:
        for line in source:
            if line.startswith("CapBnd:"):
                return bool(int(line.split()[1], 16) >> 24 & 1)
    return True


class Limits(Setting):
    """Locked memory without limit and a million open files, for sessions (pam_limits) and for units of systemd."""

    name = "limits"

    def missing(self):
        if not os.path.isdir(self.path("/etc/security")):
            return "no pam_limits here (/etc/security is not there)"
        if not may_raise_limits():
            return "limits cannot be raised here (a container without CAP_SYS_RESOURCE): set them outside"
        return None

    def _sessions(self):
        """What a new session of each account gets: account -> (memlock, open files); {} where it cannot be asked."""
        out = {}
        for account in self.task.args.get("accounts") or ["root"]:
            words = self.ask("runuser", "-l", str(account), "-s", "/bin/sh", "-c", "ulimit -Hl; ulimit -Hn").split()
            if len(words) >= 2:
                out[account] = tuple(words[-2:])
        return out

    def wrong(self):
        out = []
        for account, (memory, files) in sorted(self._sessions().items()):
            if memory != "unlimited":
                out.append("memlock of %s is %s KiB, not unlimited" % (account, memory))
            if files != "unlimited" and int(files) < OPEN_FILES:
                out.append("nofile of %s is %s, not %d" % (account, files, OPEN_FILES))
        if os.path.isdir("/run/systemd/system") and not self.place:
            shown = dict(line.split("=", 1) for line in self.ask(
                "systemctl", "show", "-p", "DefaultLimitMEMLOCK,DefaultLimitNOFILE").splitlines() if "=" in line)
            memory, files = shown.get("DefaultLimitMEMLOCK", ""), shown.get("DefaultLimitNOFILE", "")
            if memory and memory != "infinity":
                out.append("units get %s bytes of locked memory" % memory)
            if files.isdigit() and int(files) < OPEN_FILES:
                out.append("units get %s open files" % files)
        return out

    def before(self):
        return {LIMITS_FILE: self.text(LIMITS_FILE), SYSTEMD_FILE: self.text(SYSTEMD_FILE)}

    def apply(self):
        self.write(LIMITS_FILE, _LIMITS)
        if os.path.isdir("/run/systemd/system"):
            self.write(SYSTEMD_FILE, _SYSTEMD)
            # defaults of the manager are read when it starts; units go on meanwhile
            self.command("systemctl", "daemon-reexec")

    def restore(self, kept):
        for path in (LIMITS_FILE, SYSTEMD_FILE):
            self.put_back(path, kept.get(path))
        if os.path.isdir("/run/systemd/system"):
            self.command("systemctl", "daemon-reexec")


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class SharedMemory(Setting):
    """/dev/shm has at least the size asked for, now and in /etc/fstab."""

    name = "shm"

    def size(self):
        match = re.match(r"^(\d+)\s*([kmgt]?)i?b?$", str(self.task.args.get("value") or "").strip().lower())
        if not match:
            raise Failure("the size of /dev/shm cannot be read", found=str(self.task.args.get("value")),
                          expected="a number with K, M, G or T, such as 64G")
        return int(match.group(1)) * _UNITS[match.group(2)]

    def missing(self):
        if not os.path.ismount("/dev/shm"):
            return "/dev/shm is no file system of its own here"
        if container():
            return "/dev/shm of a container is sized from outside"
        return None

    def _now(self):
        found = os.statvfs("/dev/shm")
        return found.f_blocks * found.f_frsize

    def wrong(self):
        now, wanted = self._now(), self.size()
        return ["/dev/shm holds %d bytes, not %d" % (now, wanted)] if now < wanted else []

    def before(self):
        return {"size": self._now(), "lines": [line for line in self._fstab() if _of_shm(line)]}

    def _fstab(self):
        return self.text("/etc/fstab", "").splitlines()

    def _write(self, own):
        lines = [line for line in self._fstab() if not _of_shm(line)]
        self.write("/etc/fstab", "".join(line + "\n" for line in lines + own))

    def apply(self):
        self._write(["tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=%d 0 0" % self.size()])
        self.command("mount", "-o", "remount,size=%d" % self.size(), "/dev/shm")

    def restore(self, kept):
        self._write(kept["lines"])
        self.command("mount", "-o", "remount,size=%d" % kept["size"], "/dev/shm")


def _of_shm(line):
    return not line.lstrip().startswith("#") and line.split()[1:2] == ["/dev/shm"]
