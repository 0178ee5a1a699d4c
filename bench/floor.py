"""What no engine can go below: for each host a paramiko connection and one Python started over it, all at once.

Run as `floor.py KEY KNOWN_HOSTS USER ADDRESS...`; prints the longest handshake and the longest exec in seconds.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import paramiko


def one(address: str) -> tuple[float, float]:
    key, known_hosts, user = sys.argv[1:4]
    begun = time.monotonic()
    client = paramiko.SSHClient()
    client.load_host_keys(known_hosts)
    client.connect(address, username=user, key_filename=key, allow_agent=False, look_for_keys=False, timeout=30)
    shaken = time.monotonic()
    _stdin, stdout, _stderr = client.exec_command("python3 -c 'print(1)'")
    if stdout.read() != b"1\n":
        raise SystemExit(f"{address} gave no answer")
    done = time.monotonic()
    client.close()
    return shaken - begun, done - shaken


def main() -> None:
    addresses = sys.argv[4:]
    with ThreadPoolExecutor(len(addresses)) as pool:
        times = list(pool.map(one, addresses))
    print(json.dumps({"handshake": max(t[0] for t in times), "exec": max(t[1] for t in times)}))


if __name__ == "__main__":
    main()
