"""The keys of a daemon, each in a file that only its owner can read: what it seals checkpoints with, and what it redacts with.

INVARIANT: a key that others can read is refused, not used; a key file is never overwritten.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from gated.core import checkpoint
from gated.core.checkpoint import Checkpoint, Key
from gated.core.redaction.vault import Vault
from gated.errors import GatedError
from gated.shell.verdict_tokens import VerdictSigner

VAULT_BYTES = 32


class KeyFileError(GatedError):
    """The key cannot be used. `path` is its file."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the key `{path}` {why}")
        self.path, self.why = path, why


class Signer:
    """Signs checkpoints under a name, the log's origin."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.key = Key(name, private.public_key().public_bytes_raw())

    def sign(self, made: Checkpoint) -> str:
        return checkpoint.sign(made, self.key, self._private.sign)


def load_or_make(path: Path, name: str) -> Signer:
    """The signer of a key file, which is made (mode 0600) where there is none. Raises `KeyFileError`.

    The verifier key is written beside it as `<path>.pub`, for people to carry elsewhere.
    """
    if not checkpoint.is_name(name):
        raise KeyFileError(path, f"cannot sign under the name `{name}`: no spaces and no plus in it")
    try:
        if not path.exists():
            write_new(path, Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        signer = Signer(name, _load(path))
        _publish(path, f"{signer.key}\n")
    except OSError as error:
        raise KeyFileError(path, f"cannot be used: {error.strerror}") from error
    return signer


def load_or_make_verdict_signer(path: Path) -> VerdictSigner:
    """The signer of verdicts of a key file, which is made (mode 0600) where there is none. Raises `KeyFileError`.

    Its public half is written beside it as `<path>.pub` in PEM form, for the tools.
    """
    try:
        if not path.exists():
            write_new(path, Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        signer = VerdictSigner(_load(path))
        _publish(path, signer.public)
    except OSError as error:
        raise KeyFileError(path, f"cannot be used: {error.strerror}") from error
    return signer


def load_or_make_vault(path: Path) -> Vault:
    """The vault of a key file, which is made (mode 0600) where there is none. Raises `KeyFileError`."""
    try:
        if not path.exists():
            write_new(path, secrets.token_bytes(VAULT_BYTES).hex().encode() + b"\n")
        key = bytes.fromhex(read_private(path).decode())
    except (ValueError, UnicodeDecodeError) as error:
        raise KeyFileError(path, f"is not a key of {VAULT_BYTES} bytes in hex") from error
    except OSError as error:
        raise KeyFileError(path, f"cannot be used: {error.strerror}") from error
    if len(key) != VAULT_BYTES:
        raise KeyFileError(path, f"is not a key of {VAULT_BYTES} bytes in hex")
    return Vault(key)


def _publish(path: Path, text: str) -> None:
    """Write the public half beside a key, where it does not stand there: the folder may be one that is only read."""
    public = path.with_name(path.name + ".pub")
    if not public.exists() or public.read_text() != text:
        public.write_text(text)


def write_new(path: Path, key: bytes) -> None:
    """Write a new key whole or not at all, durably: a crash leaves no half key behind. One that is there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")  # in containers all that share a folder are process 1
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(handle)
        os.link(draft, path)  # unlike a rename it fails where another process was faster
        sync_folder(path.parent)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def sync_folder(folder: Path) -> None:
    """Make durable what files a folder has."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_private(path: Path) -> bytes:
    """What only its owner can read. Raises `KeyFileError` where others can, too."""
    found = path.stat()
    if is_open_to_others(found.st_mode, found.st_uid, os.geteuid()):
        raise KeyFileError(path, f"can be read by others: run `chmod 600 {path}`")
    return path.read_bytes()


def is_open_to_others(mode: int, owner: int, me: int) -> bool:
    """Whether others may read or write a file than who needs it.

    What root gives a service to read, as Kubernetes mounts its secrets, is root's and its group's: that group may read it.
    """
    given = owner == 0 and me != 0
    return bool(stat.S_IMODE(mode) & (0o037 if given else 0o077))


def _load(path: Path) -> Ed25519PrivateKey:
    raw = read_private(path)
    try:
        private = load_pem_private_key(raw, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(path, f"is not an unencrypted private key in PEM form: {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(path, "is not an Ed25519 key")
    return private
