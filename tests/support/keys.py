"""Keys that nobody uses elsewhere, a signature that ssh-keygen made with one of them, and ssh-keygen itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ccfs.files.signing import PrivateKey, Signer, read_private_key, read_signers

REQUIRED = "CCFS_REQUIRE_SSH"
"""Set (by CI) to have the tests fail where there is no ssh-keygen."""
NAMESPACE = "ccfs-run"
MESSAGE = b"hello\n"
PASSPHRASE = "secret"

ADA = """\
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW
QyNTUxOQAAACBMwfkt1dvo/rrYwJOiOkzZmelLGKNBZAqxs4PVRw3fJAAAAJgefNe+HnzX
vgAAAAtzc2gtZWQyNTUxOQAAACBMwfkt1dvo/rrYwJOiOkzZmelLGKNBZAqxs4PVRw3fJA
AAAEDCdBYDkAzfGjwkTU+QQbsTOc5MZ5QH4FSGQQAi80EL1UzB+S3V2+j+utjAk6I6TNmZ
6UsYo0FkCrGzg9VHDd8kAAAAD2FkYUBleGFtcGxlLm9yZwECAwQFBg==
-----END OPENSSH PRIVATE KEY-----
"""
ADA_PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEzB+S3V2+j+utjAk6I6TNmZ6UsYo0FkCrGzg9VHDd8k ada@example.org"
FINGERPRINT = "SHA256:qHBmiRRQtTFk0PgrJvJssQQqhqsi5Z9sqask+D1Ou4g"

# With the passphrase.
BOB = """\
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABCB9sj8qs
MiegTT0ibglvtSAAAAEAAAAAEAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIKD8WQwx0jMCy/M3
8TFtWmjdviohVzGcE7Bx8DJ4NytKAAAAkIJ2boqQ4XJmgtuzwrZr4x49f22zGdAcQ9esyS
8CmT9SKou1/uk8x9vN8/Q3QjLIT+XV1r0+mdydkisTMrv18B5IiSSlvTDzIrVHKuEnSAG/
mgucmkGf9kpDNyWHdZTMIxtIIyX3L1w0kl+xAqxr7To6sktgJIu4/tZV1/XxK9hiz2Hg90
L6Vugr2WuO39eF6Q==
-----END OPENSSH PRIVATE KEY-----
"""
BOB_PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKD8WQwx0jMCy/M38TFtWmjdviohVzGcE7Bx8DJ4NytK bob"

# ssh-keygen -t ecdsa
ECDSA = """\
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAaAAAABNlY2RzYS
1zaGEyLW5pc3RwMjU2AAAACG5pc3RwMjU2AAAAQQTw060S4FC5wtGKNX4A7pm8d2mmBD93
BpkVKntGeU2c5G5mAm56AlvGGBo/8K+l81Ro8TsAdScG68P9JktvfO6VAAAAoFgpSLdYKU
i3AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBPDTrRLgULnC0Yo1
fgDumbx3aaYEP3cGmRUqe0Z5TZzkbmYCbnoCW8YYGj/wr6XzVGjxOwB1Jwbrw/0mS2987p
UAAAAgXMIJ2w22xw6J+JJ/qQl1FLIbKPqh3k0F9/VsYGsqGH8AAAAFY2Fyb2wBAgM=
-----END OPENSSH PRIVATE KEY-----
"""
ECDSA_PUBLIC = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBPDTrRLgULnC0Yo1fgDumbx3aaYE"
    "P3cGmRUqe0Z5TZzkbmYCbnoCW8YYGj/wr6XzVGjxOwB1Jwbrw/0mS2987pU= carol"
)

# printf 'hello\\n' > m; ssh-keygen -Y sign -f ada -n ccfs-run m  (OpenSSH 9.2)
SIGNATURE = b"""\
-----BEGIN SSH SIGNATURE-----
U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgTMH5LdXb6P662MCTojpM2ZnpSx
ijQWQKsbOD1UcN3yQAAAAIY2Nmcy1ydW4AAAAAAAAABnNoYTUxMgAAAFMAAAALc3NoLWVk
MjU1MTkAAABAm6+bwMeZOPATMTOPj7Gkujp9UCc6BKEfOi54p6HsUddFPBVfeRhSLTQcgw
lQMgWEY5evpxgk+3WfZp6uwmcdBA==
-----END SSH SIGNATURE-----
"""


def write_keys(folder: Path) -> Path:
    """Write all keys into a folder."""
    files = {
        "ada": ADA,
        "ada.pub": ADA_PUBLIC + "\n",
        "bob": BOB,
        "bob.pub": BOB_PUBLIC + "\n",
        "ecdsa": ECDSA,
        "ecdsa.pub": ECDSA_PUBLIC + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)  # ssh-keygen refuses a private key that others can read
    return folder


def ada(folder: Path) -> tuple[PrivateKey, tuple[Signer, ...]]:
    """The key of Ada, and what a reader has of it."""
    return _known(write_keys(folder), "ada")


def bob(folder: Path) -> tuple[PrivateKey, tuple[Signer, ...]]:
    """The key of Bob, and what a reader has of it."""
    return _known(write_keys(folder), "bob")


_read: dict[str, tuple[PrivateKey, tuple[Signer, ...]]] = {}


def _known(folder: Path, name: str) -> tuple[PrivateKey, tuple[Signer, ...]]:
    # A passphrase takes a quarter of a second on purpose.
    if name not in _read:
        _read[name] = read_private_key(folder / name, lambda: PASSPHRASE), read_signers(folder / f"{name}.pub")
    return _read[name]


def keygen(*words: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes] | None:
    """Call ssh-keygen. Without one on this machine there is no answer, unless CI requires it."""
    program = shutil.which("ssh-keygen")
    if program is None:
        if os.environ.get(REQUIRED):
            raise AssertionError(f"{REQUIRED} is set, but there is no ssh-keygen (Debian: openssh-client)")
        return None
    return subprocess.run([program, *map(str, words)], input=given, capture_output=True, check=False)
