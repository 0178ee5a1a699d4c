"""Host certificates: a key that an authority of known_hosts (`@cert-authority`) has signed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import paramiko

from bringup.base.errors import UnreachableError
from bringup.connection.hostkeys import Policy, fingerprint
from bringup.connection.sshconfig import matches

_HOST = 2
_KEYS = {"ssh-ed25519": paramiko.Ed25519Key, "ssh-rsa": paramiko.RSAKey, "ecdsa-sha2-nistp256": paramiko.ECDSAKey,
         "ecdsa-sha2-nistp384": paramiko.ECDSAKey, "ecdsa-sha2-nistp521": paramiko.ECDSAKey}
_PUBLIC_PARTS = {"ssh-ed25519": 1, "ssh-rsa": 2}  # strings of the public key in a certificate; ECDSA: curve and point


@dataclass(frozen=True)
class Certificate:
    """The fields of an OpenSSH certificate that matter here (PROTOCOL.certkeys). Times are seconds since 1970."""

    kind: int
    key_id: str
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: tuple[str, ...]
    authority: bytes
    signature: bytes
    signed: bytes
    plain: bytes  # the certified key as an ordinary blob


def parse(blob: bytes) -> Certificate:
    """Raises ValueError when the blob is no certificate."""
    message = paramiko.Message(blob)
    base = message.get_text().removesuffix("-cert-v01@openssh.com")
    message.get_binary()  # nonce
    plain = paramiko.Message()
    plain.add_string(base)
    for _ in range(_PUBLIC_PARTS.get(base, 2)):
        plain.add_string(message.get_binary())
    message.get_int64()  # serial
    kind = message.get_int()
    key_id = message.get_text()
    principals = _strings(message.get_binary())
    after, before = message.get_int64(), message.get_int64()
    critical = _strings(message.get_binary())[::2]
    message.get_binary()  # extensions
    message.get_binary()  # reserved
    authority = message.get_binary()
    signed = blob[: len(blob) - len(message.get_remainder())]
    signature = message.get_binary()
    if not authority or not signature:
        raise ValueError("the certificate is cut short")
    return Certificate(kind, key_id, principals, after, before, critical, authority, signature, signed, plain.asbytes())


def _strings(data: bytes) -> tuple[str, ...]:
    message = paramiko.Message(data)
    out = []
    while message.get_remainder():
        out.append(message.get_binary().decode("utf-8", "replace"))
    return tuple(out)


def check(policy: Policy, blob: bytes, now: float | None = None) -> None:
    """Accept a host certificate that one of the server's authorities signed, for its name, at this time.

    A certificate of an unknown authority is judged as the plain key in it. Raises UnreachableError.
    """
    certificate = parse(blob)
    known = next((item for item in policy.authorities if item.blob == certificate.authority), None)
    plain_type = paramiko.Message(certificate.plain).get_text()
    if known is None:
        policy.check(plain_type, certificate.plain)
        return
    for item in policy.entries:
        if item.marker == "revoked" and item.blob in (certificate.plain, certificate.authority):
            raise UnreachableError("the host key or its authority is revoked; nothing was sent", host=policy.host,
                                   found=fingerprint(item.blob), where=f"{item.file}:{item.line}")
    trouble = _trouble(policy, certificate, time.time() if now is None else now)
    if trouble:
        raise UnreachableError(
            f"the host certificate does not hold: {trouble}; nothing was sent", host=policy.host,
            expected=f"a certificate of {known.file}:{known.line} for {policy.name}",
            found=f"{certificate.key_id}, for {', '.join(certificate.principals) or 'no name'}",
            next="sign the host's key anew: ssh-keygen -s CA -h -n NAME -I ID KEY.pub")


def _trouble(policy: Policy, certificate: Certificate, now: float) -> str | None:
    if not _signed(certificate):
        return "its signature is wrong"
    if certificate.kind != _HOST:
        return "it is a user's certificate"
    if not certificate.valid_after <= now < certificate.valid_before:
        return "it is not valid at this time"
    if certificate.critical:
        return f"it has critical options ({', '.join(certificate.critical)})"
    name = policy.name
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    if certificate.principals and not any(matches(item, name) for item in certificate.principals):
        return "it is for other names"
    return None


def _signed(certificate: Certificate) -> bool:
    kind = paramiko.Message(certificate.authority).get_text()
    key = _KEYS[kind](data=certificate.authority) if kind in _KEYS else None
    return key is not None and bool(key.verify_ssh_sig(certificate.signed, paramiko.Message(certificate.signature)))
