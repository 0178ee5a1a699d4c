"""Ansible Vault, read as it is: format 1.1 and 1.2, AES256 (CTR, HMAC-SHA256, PBKDF2 with 10,000 rounds)."""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import pbkdf2_hmac

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.secrets import SCRUBBER, Secret

HEADER = "$ANSIBLE_VAULT;"


def is_vaulted(text: str) -> bool:
    """True for the text of a vaulted file or variable."""
    return text.lstrip().startswith(HEADER)


@dataclass
class Vault:
    """The passwords that were given, by vault id (`default` for one without); opens vaulted texts.

    Opened values become known to the scrubber.
    """

    passwords: Mapping[str, Sequence[Secret]] = field(default_factory=dict)

    def open(self, text: str, where: Origin | str | None = None) -> Secret:
        """The plain text. Raises InputError when no password was given or none fits."""
        label, salt, digest, cipher = _parse(text, where)
        candidates = [*self.passwords.get(label, ())]
        candidates += [secret for name, secrets in self.passwords.items() if name != label for secret in secrets]
        if not candidates:
            raise InputError("is vaulted and no vault password was given", where=where,
                             next="add --vault-password-file FILE")
        for password in candidates:
            plain = _decrypt(password.reveal().encode(), salt, digest, cipher)
            if plain is not None:
                try:
                    value = Secret(plain.decode("utf-8"))
                except UnicodeDecodeError:
                    raise InputError("the vaulted text is not UTF-8", where=where) from None
                SCRUBBER.add(value)
                return value
        raise InputError("no vault password that was given opens this text", where=where,
                         next="check --vault-password-file")


def _parse(text: str, where: Origin | str | None) -> tuple[str, bytes, bytes, bytes]:
    lines = text.strip().splitlines()
    header = lines[0].strip().split(";") if lines else []
    if len(header) < 3 or header[2] != "AES256":
        raise InputError("is not a vault text that can be read (AES256 is)", where=where)
    label = header[3].strip() if header[1] == "1.2" and len(header) > 3 else "default"
    try:
        inner = binascii.unhexlify("".join(line.strip() for line in lines[1:]))
        salt, digest, cipher = (binascii.unhexlify(part) for part in inner.split(b"\n", 2))
    except (binascii.Error, ValueError):
        raise InputError("the vault text is damaged", where=where) from None
    return label, salt, digest, cipher


def _decrypt(password: bytes, salt: bytes, digest: bytes, cipher: bytes) -> bytes | None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    keys = pbkdf2_hmac("sha256", password, salt, 10_000, 80)
    if not hmac.compare_digest(hmac.new(keys[32:64], cipher, "sha256").digest(), digest):
        return None
    decryptor = Cipher(algorithms.AES(keys[:32]), modes.CTR(keys[64:80])).decryptor()
    padded = decryptor.update(cipher) + decryptor.finalize()
    return padded[: -padded[-1]] if padded else b""
