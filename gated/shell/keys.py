"""The key that a daemon seals its checkpoints with: an Ed25519 private key in a file that only its owner can read.

INVARIANT: a key that others can read is refused, not used; a key file is never overwritten.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from gated.core import checkpoint
from gated.core.checkpoint import Checkpoint, Key
from gated.errors import GatedError


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
            _make(path)
        signer = Signer(name, _load(path))
        path.with_name(path.name + ".pub").write_text(f"{signer.key}\n")
    except OSError as error:
        raise KeyFileError(path, f"cannot be used: {error.strerror}") from error
    return signer


def _make(path: Path) -> None:
    """Write a new key whole or not at all: a crash leaves no half key behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(handle)
        os.link(draft, path)  # unlike a rename it fails where another process was faster
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _load(path: Path) -> Ed25519PrivateKey:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise KeyFileError(path, f"can be read by others: run `chmod 600 {path}`")
    try:
        private = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(path, f"is not an unencrypted private key in PEM form: {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(path, "is not an Ed25519 key")
    return private
