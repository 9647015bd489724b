"""Sign and check bytes with Ed25519 keys of OpenSSH: as `ssh-keygen -Y` does (SSHSIG), and in DSSE envelopes.

The arithmetic is that of the package `cryptography`. What stands here are the three file formats around it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import shlex
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from ccfs.files.digests import canonical_json
from ccfs.files.documents import Table
from ccfs.files.reading import RefusedFileError, read_bytes, read_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "STATEMENT",
    "KeyFileError",
    "Opened",
    "PrivateKey",
    "PublicKey",
    "SignatureError",
    "Signer",
    "SshSignature",
    "envelope",
    "opened_envelope",
    "pae",
    "read_private_key",
    "read_signers",
    "ssh_signature",
]

_KIND = "ssh-ed25519"
_ADVICE = "`ssh-keygen -t ed25519` makes such a key."
_MOST_BYTES = 1 << 20  # of a key, a list of signers or a signature
_MAGIC, _VERSION, _HASHES = b"SSHSIG", 1, ("sha256", "sha512")
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
"""The `_type` of every payload that we sign."""
_LONGEST_LINE = 16_384  # characters of a public key with its names and options


class KeyFileError(ValueError):
    """A file that is not a key, or not a list of signers, as it is needed here."""


class SignatureError(RuntimeError):
    """A signature that is not there, that is not the one that was asked for, or that does not fit what it is beside."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 public key.

    Args:
        raw: its 32 bytes.
    """

    raw: bytes

    @property
    def blob(self) -> bytes:
        """The key as OpenSSH writes it inside of its files."""
        return _strings(_KIND.encode(), self.raw)

    @property
    def line(self) -> str:
        """The key as one line, without a comment."""
        return f"{_KIND} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """What `ssh-keygen -l` shows of the key."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether a signature of 64 bytes is that of this key over a message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    @classmethod
    def from_line(cls, text: str) -> PublicKey:
        """Read a key from a line such as "ssh-ed25519 AAAA...". Raise ValueError for anything else."""
        kind, _, encoded = text.partition(" ")
        if kind != _KIND:
            raise ValueError(f"must be an Ed25519 key, got {kind!r}. {_ADVICE}")
        blob = _decoded(encoded)
        made = cls(blob[-32:])
        if made.blob != blob:
            raise ValueError("must be a whole Ed25519 key, got another number of bytes.")
        return made


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """An Ed25519 private key, which signs."""

    _key: Ed25519PrivateKey

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the signature over a message. The same message gives the same 64 bytes."""
        return self._key.sign(message)


def read_private_key(path: Path, passphrase: Callable[[], str]) -> PrivateKey:
    """Read a private key in the OpenSSH format.

    Args:
        path: the file, such as ~/.ssh/id_ed25519.
        passphrase: asked for the passphrase, if the key has one.

    Raises:
        KeyFileError: the file is no such key, or the passphrase is wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    content = _read(path, "private key")
    if b"PRIVATE KEY-----" not in content:
        hint = f" Give {path.with_suffix('')} instead." if path.suffix == ".pub" else ""
        raise KeyFileError(f"{path}: must be a private key in the OpenSSH format, got something else.{hint}")
    try:
        try:
            key = load_ssh_private_key(content, None)
        except TypeError:  # it has a passphrase
            key = load_ssh_private_key(content, passphrase().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(
            f"{path}: must be a private key in the OpenSSH format with the right passphrase: {error}. {_ADVICE}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: must be an Ed25519 key, got {type(key).__name__}. {_ADVICE}")
    return PrivateKey(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Somebody whose signature is accepted.

    Args:
        name: who it is, as the file says that names the key.
        key: the public key.
        namespaces: what the key may sign. None is everything.
        condition: a condition that is not judged here, such as a date. Then the key is not accepted.
    """

    name: str
    key: PublicKey
    namespaces: tuple[str, ...] | None = None
    condition: str | None = None

    def refuse(self, namespace: str) -> None:
        """Raise SignatureError unless the signer may sign in this namespace."""
        if self.condition is not None:
            raise SignatureError(
                f"the key of {self.name} is listed with `{self.condition}`, which is not judged here. "
                "`ssh-keygen -Y verify` judges it."
            )
        if self.namespaces is not None and namespace not in self.namespaces:
            raise SignatureError(f"the key of {self.name} may sign {', '.join(self.namespaces)}, but not {namespace}.")


def read_signers(path: Path) -> tuple[Signer, ...]:
    """Read a public key file, or a file in the format of OpenSSH's `allowed_signers`. Keys of other kinds are skipped.

    Raises:
        KeyFileError: there is no Ed25519 key in it, or a line has another form.
    """
    try:
        text = _read(path, "public key or list of allowed signers").decode()
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: must be a text file of public keys.") from None
    if "PRIVATE KEY-----" in text:
        raise KeyFileError(f"{path}: must be a public key, got a private one. Give {path}.pub, and keep this one.")
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        if len(words) > _LONGEST_LINE:
            raise KeyFileError(f"{path}, line {number}: must have at most {_LONGEST_LINE:,} characters.")
        if words and not words.startswith("#"):
            try:
                found += _signer(words)
            except ValueError as error:
                raise KeyFileError(f"{path}, line {number}: {error}") from None
    if not found:
        raise KeyFileError(f"{path}: must name at least one Ed25519 key. {_ADVICE}")
    return tuple(found)


def _signer(line: str) -> list[Signer]:
    """Return the signer of a line, or none if the line has a key of another kind."""
    words = _split(line, " \t", keeps_quotes=True)
    places = [i for i, word in enumerate(words[:3]) if _is_kind(word)]
    if not places or len(words) < places[0] + 2:
        raise ValueError("must be a public key (ssh-ed25519 AAAA... name), or such a key after names and options.")
    place = places[0]
    if words[place] != _KIND:
        return []
    key = PublicKey.from_line(f"{_KIND} {words[place + 1]}")
    if place == 0:
        return [Signer(name=" ".join(words[2:]) or key.fingerprint, key=key)]
    namespaces, condition = _options(words[1] if place == 2 else "")
    return [Signer(name=words[0], key=key, namespaces=namespaces, condition=condition)]


def _is_kind(word: str) -> bool:
    return word.startswith(("ssh-", "sk-ssh-", "ecdsa-sha2-", "sk-ecdsa-sha2-"))


def _split(text: str, separator: str, *, keeps_quotes: bool) -> list[str]:
    """Split a text at separators outside of quotes."""
    lexer = shlex.shlex(text, posix=not keeps_quotes)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters, lexer.quotes = separator, True, "", '"'
    try:
        return list(lexer)
    except ValueError:
        raise ValueError("has a quote that does not end.") from None


def _options(text: str) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the namespaces that options of a signer allow, and the first other option."""
    namespaces, rest = None, []
    for option in _split(text, ",", keeps_quotes=False):
        name, _, value = option.partition("=")
        if name.lower() == "namespaces":
            namespaces = tuple(value.split(","))
        else:
            rest.append(name)
    return namespaces, rest[0] if rest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSignature:
    """A signature as `ssh-keygen -Y sign` writes it."""

    key: PublicKey
    namespace: str
    hash: str
    signature: bytes

    @classmethod
    def read(cls, content: bytes, where: object) -> SshSignature:
        """Read the armoured form. Raise SignatureError for another key, another version, or anything left over."""
        try:
            lines = content.decode("ascii").split("\n")
            if [*lines[:1], *lines[-2:]] != [_BEGIN, _END, ""]:
                raise ValueError("must begin and end as ssh-keygen writes it")
            blob = _decoded("".join(lines[1:-2]))
            if not blob.startswith(_MAGIC + struct.pack(">I", _VERSION)):
                raise ValueError(f"must have version {_VERSION}")
            key, namespace, reserved, algorithm, signed = _parts(blob[len(_MAGIC) + 4 :], 5)
            kind, signature = _parts(signed, 2)
            if reserved or algorithm.decode("ascii") not in _HASHES or kind != _KIND.encode():
                raise ValueError(f"must be a signature of an Ed25519 key over {' or '.join(_HASHES)}. {_ADVICE}")
            public = PublicKey(key[-32:])
            if public.blob != key or len(signature) != 64:
                raise ValueError(f"must be a signature of an Ed25519 key. {_ADVICE}")
            return cls(key=public, namespace=namespace.decode(), hash=algorithm.decode("ascii"), signature=signature)
        except (ValueError, struct.error) as error:
            raise SignatureError(f"{where}: is no signature as `ssh-keygen -Y sign` writes it: {error}") from None

    def is_of(self, message: bytes, namespace: str) -> bool:
        """Return whether this is a valid signature over a message in a namespace."""
        signed = _ssh_message(message, self.namespace, self.hash)
        return self.namespace == namespace and self.key.has_signed(signed, self.signature)


def ssh_signature(key: PrivateKey, message: bytes, namespace: str) -> bytes:
    """Return the signature of a message as `ssh-keygen -Y sign -n NAMESPACE` writes it, byte for byte."""
    algorithm = "sha512"
    signed = _strings(_KIND.encode(), key.sign(_ssh_message(message, namespace, algorithm)))
    inside = _strings(key.public.blob, namespace.encode(), b"", algorithm.encode(), signed)
    text = base64.b64encode(_MAGIC + struct.pack(">I", _VERSION) + inside).decode()
    lines = [text[i : i + 70] for i in range(0, len(text), 70)]
    return "\n".join([_BEGIN, *lines, _END, ""]).encode()


def _ssh_message(message: bytes, namespace: str, algorithm: str) -> bytes:
    """Return the bytes under an SSHSIG signature (PROTOCOL.sshsig of OpenSSH, section 3)."""
    return _MAGIC + _strings(namespace.encode(), b"", algorithm.encode(), hashlib.new(algorithm, message).digest())


class _EnvelopeSignature(Table):
    keyid: str = Field(max_length=200)
    sig: str = Field(max_length=200)


class _Envelope(Table):
    """A DSSE envelope with one signature."""

    payload: str
    payloadType: str  # noqa: N815  # its name in the format
    signatures: tuple[_EnvelopeSignature, ...] = Field(min_length=1, max_length=1)


def pae(kind: str, payload: bytes) -> bytes:
    """Return the bytes under a DSSE signature.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def envelope(key: PrivateKey, statement: dict[str, object]) -> bytes:
    """Return an in-toto statement in a signed DSSE envelope, as one line of JSON."""
    payload = canonical_json(statement).encode()
    signature = {"keyid": key.public.fingerprint, "sig": base64.b64encode(key.sign(pae(_PAYLOAD, payload))).decode()}
    content = {"payload": base64.b64encode(payload).decode(), "payloadType": _PAYLOAD, "signatures": [signature]}
    return canonical_json(content).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A signed statement, and the key that has signed it. Whether that key is anybody's is for the reader to say."""

    key: PublicKey
    statement: dict[str, object]

    @property
    def predicate(self) -> dict[str, object]:
        """What the statement says about its subjects."""
        found = self.statement.get("predicate")
        return found if isinstance(found, dict) else {}


def opened_envelope(content: bytes, where: object) -> Opened:
    """Return the in-toto statement of a DSSE envelope. Raise SignatureError unless the key that it names has signed it.

    The predicate of the statement names the key. `where` names the envelope in errors.
    """
    try:
        text = canonical_json(read_json(content, where))
        if content != text.encode() + b"\n":  # so that a published record has one hash
            raise ValueError("it must be canonical JSON and one line")
        found = _Envelope.model_validate_json(text)
        payload, signature = _decoded(found.payload), _decoded(found.signatures[0].sig)
        statement = read_json(payload, where)
        if found.payloadType != _PAYLOAD or not isinstance(statement, dict) or statement.get("_type") != STATEMENT:
            raise ValueError(f"its payload must be an in-toto statement, {STATEMENT}")
        if canonical_json(statement).encode() != payload:
            raise ValueError("its statement must be canonical JSON")
        predicate = statement.get("predicate")
        key = PublicKey.from_line(str(predicate.get("key") if isinstance(predicate, dict) else None))
    except (RefusedFileError, ValueError) as error:
        told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error).rstrip(".")
        raise SignatureError(f"{where}: is no DSSE envelope with one signature: {told}.") from None
    if found.signatures[0].keyid != key.fingerprint or not key.has_signed(pae(_PAYLOAD, payload), signature):
        raise SignatureError(f"{where}: its signature is not that of the key {key.fingerprint} over its statement.")
    return Opened(key=key, statement=statement)


def _read(path: Path, what: str) -> bytes:
    try:
        return read_bytes(path, most=_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(f"{path}: must be a {what}, but cannot be read: {error.strerror}.") from None
    except RefusedFileError as error:
        raise KeyFileError(str(error)) from None


def _decoded(text: str) -> bytes:
    """Return base64 text as bytes. Refuse another spelling of the same bytes."""
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"must be base64: {error}.") from None
    if base64.b64encode(found).decode() != text:
        raise ValueError("must be base64 in its one form.")
    return found


def _strings(*parts: bytes) -> bytes:
    """Return parts as strings of the SSH protocol: each after its length."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def _parts(blob: bytes, count: int) -> list[bytes]:
    """Return the strings of the SSH protocol in a blob, which must be so many and nothing more."""
    found, place = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from(">I", blob, place)
        found.append(blob[place + 4 : place + 4 + length])
        place += 4 + length
    if place != len(blob):
        raise ValueError("must have nothing missing and nothing left over")
    return found
