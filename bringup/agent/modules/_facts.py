"""Facts of the system: names, distribution, time, account, interpreter, managers."""

import os
import platform
import pwd
import shutil
import sys
import time

_FAMILIES = {
    "Debian": ("Debian", "Ubuntu", "Linux Mint", "Raspbian", "Pop!_OS", "Kali", "Deepin", "UOS"),
    "RedHat": ("RedHat", "Fedora", "CentOS", "Rocky", "AlmaLinux", "OracleLinux", "Amazon", "openEuler", "Kylin Linux",
               "EulerOS", "Anolis", "TencentOS", "Alibaba"),
    "Suse": ("SLES", "openSUSE", "openSUSE Leap", "openSUSE Tumbleweed"),
    "Alpine": ("Alpine",),
    "Archlinux": ("Archlinux",),
}
_NAMES = {"debian": "Debian", "ubuntu": "Ubuntu", "rhel": "RedHat", "fedora": "Fedora", "centos": "CentOS",
          "rocky": "Rocky", "almalinux": "AlmaLinux", "ol": "OracleLinux", "amzn": "Amazon", "openeuler": "openEuler",
          "kylin": "Kylin Linux", "euleros": "EulerOS", "anolis": "Anolis", "tencentos": "TencentOS",
          "alinux": "Alibaba", "sles": "SLES", "opensuse-leap": "openSUSE Leap",
          "opensuse-tumbleweed": "openSUSE Tumbleweed", "alpine": "Alpine", "arch": "Archlinux",
          "linuxmint": "Linux Mint", "raspbian": "Raspbian", "pop": "Pop!_OS",
          "kali": "Kali", "deepin": "Deepin", "uos": "UOS"}


def text_of(path, default=""):
    """A small file's text without blanks at its ends; the default where it cannot be read."""
    try:
        with open(path, "rb") as source:
            return source.read().decode("utf-8", "replace").strip()
    except OSError:
        return default


def system(task):
    import socket

    name = platform.node()
    full = socket.getfqdn(name)
    machine = platform.machine()
    return {
        "system": platform.system(), "kernel": platform.release(), "kernel_version": platform.version(),
        "machine": machine, "architecture": machine, "nodename": name, "hostname": name.split(".")[0],
        "fqdn": full, "domain": ".".join(full.split(".")[1:]), "userspace_bits": platform.architecture()[0][:2],
        "userspace_architecture": machine if platform.architecture()[0] == "64bit" else "i386",
        "machine_id": text_of("/etc/machine-id") or text_of("/var/lib/dbus/machine-id"),
        "uptime_seconds": int(float((text_of("/proc/uptime") or "0").split()[0])),
        "loadavg": {("1m", "5m", "15m")[number]: value for number, value in enumerate(os.getloadavg())},
        "fips": text_of("/proc/sys/crypto/fips_enabled") == "1",
    }


def os_release():
    """The fields of os-release, quotes taken off."""
    out = {}
    for line in (text_of("/etc/os-release") or text_of("/usr/lib/os-release")).splitlines():
        key, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            out[key.strip()] = value.strip().strip("\"'")
    return out


def distribution(task):
    fields = os_release()
    short = fields.get("ID", "").lower()
    name = _NAMES.get(short) or fields.get("NAME", platform.system()).split(" ")[0]
    version = fields.get("VERSION_ID", "")
    if short == "debian":
        # the minor number stands in this file only
        precise = text_of("/etc/debian_version")
        version = precise if precise[:1].isdigit() else version or precise.partition("/")[0]
    parts = version.split(".")
    family = next((key for key, names in _FAMILIES.items() if name in names), None)
    if family is None:
        like = fields.get("ID_LIKE", "").split()
        family = next((key for key, names in _FAMILIES.items() for one in like if _NAMES.get(one) in names), name)
    release = fields.get("VERSION_CODENAME") or fields.get("UBUNTU_CODENAME") or ""
    if not release and "(" in fields.get("VERSION", ""):
        release = fields["VERSION"].partition("(")[2].partition(")")[0]
    out = {"distribution": name, "distribution_version": version or "NA", "distribution_release": release or "NA",
           "distribution_major_version": parts[0] or "NA", "os_family": family,
           "distribution_file_path": "/etc/os-release", "distribution_file_parsed": bool(fields)}
    if len(parts) > 1:
        out["distribution_minor_version"] = parts[1]
    return out


def date_time(task):
    now = time.time()
    here, utc = time.localtime(now), time.gmtime(now)
    micro = int(now % 1 * 1000000)
    offset = (here.tm_gmtoff or 0) // 60
    sign = "-" if offset < 0 else "+"
    form = {"year": "%Y", "month": "%m", "weekday": "%A", "weekday_number": "%w", "weeknumber": "%W", "day": "%d",
            "hour": "%H", "minute": "%M", "second": "%S", "date": "%Y-%m-%d", "time": "%H:%M:%S", "tz": "%Z"}
    out = {key: time.strftime(text, here) for key, text in form.items()}
    out.update(
        epoch=str(int(now)), epoch_int=str(int(now)), tz_dst=time.tzname[1],
        tz_offset="%s%02d%02d" % (sign, abs(offset) // 60, abs(offset) % 60),
        iso8601=time.strftime("%Y-%m-%dT%H:%M:%SZ", utc),
        iso8601_micro=time.strftime("%Y-%m-%dT%H:%M:%S", utc) + ".%06dZ" % micro,
        iso8601_basic=time.strftime("%Y%m%dT%H%M%S", here) + "%06d" % micro,
        iso8601_basic_short=time.strftime("%Y%m%dT%H%M%S", here))
    return {"date_time": out}


def environment(task):
    return {"env": {key: value.encode("utf-8", "replace").decode("utf-8")
                    for key, value in task.command_environment().items()}}


def user(task):
    try:
        found = pwd.getpwuid(os.getuid())
        out = {"user_id": found.pw_name, "user_uid": found.pw_uid, "user_gid": found.pw_gid,
               "user_gecos": found.pw_gecos, "user_dir": found.pw_dir, "user_shell": found.pw_shell}
    except KeyError:
        # an account of a container that has no name
        out = {"user_id": str(os.getuid()), "user_uid": os.getuid(), "user_gid": os.getgid()}
    out.update(real_user_id=os.getuid(), effective_user_id=os.geteuid(), real_group_id=os.getgid(),
               effective_group_id=os.getegid())
    return out


def python(task):
    version = sys.version_info
    fields = {"major": version[0], "minor": version[1], "micro": version[2], "releaselevel": version[3],
              "serial": version[4]}
    try:
        import ssl
        context = hasattr(ssl, "SSLContext")
    except ImportError:
        context = False
    return {"python_version": platform.python_version(),
            "python": {"version": fields, "version_info": list(version), "executable": sys.executable,
                       "has_sslcontext": context, "type": sys.implementation.name}}


def service_manager(task):
    if os.path.isdir("/run/systemd/system"):
        return {"service_mgr": "systemd"}
    first = text_of("/proc/1/comm")
    known = {"systemd": "systemd", "init": "sysvinit", "runit": "runit", "openrc-init": "openrc"}
    return {"service_mgr": known.get(first, "service" if first in ("", "sh", "bash") else first)}


def package_manager(task):
    for program, name in (("apt-get", "apt"), ("dnf5", "dnf5"), ("dnf", "dnf"), ("yum", "yum"), ("zypper", "zypper"),
                          ("apk", "apk"), ("pacman", "pacman")):
        if shutil.which(program):
            return {"pkg_mgr": name}
    return {"pkg_mgr": "unknown"}


def selinux(task):
    root = "/sys/fs/selinux"
    armour = "enabled" if os.path.isdir("/sys/kernel/security/apparmor") else "disabled"
    out = {"apparmor": {"status": armour}}
    if not os.path.exists(root + "/enforce"):
        out["selinux"] = {"status": "disabled"}
        return out
    settings = dict(line.split("=", 1) for line in text_of("/etc/selinux/config").splitlines()
                    if "=" in line and not line.startswith("#"))
    out["selinux"] = {"status": "enabled", "mode": "enforcing" if text_of(root + "/enforce") == "1" else "permissive",
                      "config_mode": settings.get("SELINUX", "unknown").strip(),
                      "type": settings.get("SELINUXTYPE", "unknown").strip(),
                      "policyvers": text_of(root + "/policyvers")}
    return out


def command_line(task):
    """`cmdline` has the last value of each word, `proc_cmdline` a list of those that stand more than once."""
    last, all_values = {}, {}
    for word in text_of("/proc/cmdline").split():
        key, sign, value = word.partition("=")
        last[key] = value if sign else True
        all_values.setdefault(key, []).append(last[key])
    return {"cmdline": last, "proc_cmdline": {key: values[0] if len(values) == 1 else values
                                              for key, values in all_values.items()}}


def host_keys(task):
    out = {}
    for kind in ("rsa", "ecdsa", "ed25519"):
        words = text_of("/etc/ssh/ssh_host_%s_key.pub" % kind).split()
        if len(words) >= 2:
            out["ssh_host_key_%s_public" % kind] = words[1]
            out["ssh_host_key_%s_public_keytype" % kind] = words[0]
    return out
