"""Whose data a record holds (`redact: {store: encrypted}`), and the keys that what was taken out is sealed under.

A subject is a thread, a run, or what a label of the run says (`label:customer=42`). Each has a key of its own, kept outside the
log; where that is erased, nothing that was sealed under it can be read again, and the chain of hashes is as it was.
AES-256-GCM under a nonce that is a keyed digest of the text: the same text seals to the same bytes, so that a decision stays a
function of its input, and no nonce serves two texts.
INVARIANT: whoever decides has the keys at hand, or is told which one is missing (`Unkeyed`); nothing is ever sealed under none.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gated.events import RunId, ThreadId

FORM: Final = "gcm1"  # of what is sealed: gcm1.<holder>.<key id>.<base64 of nonce and ciphertext>
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
LABEL: Final = "label:"


class Unreadable(Exception):
    """A value that was taken out of the log would have to be read, and cannot be. `key` is the id of its subject's key."""

    def __init__(self, why: str, key: str | None = None) -> None:
        super().__init__(why)
        self.key = key


class Unkeyed(Exception):
    """The key of `holder` is not at hand. `to_seal`: one is to be made where there is none."""

    def __init__(self, holder: str, *, to_seal: bool) -> None:
        super().__init__(f"the key of `{holder}` is not at hand")
        self.holder, self.to_seal = holder, to_seal


class SubjectKey:
    """One key. `id` names it and tells nothing of it; the key itself is in no record, message or error."""

    __slots__ = ("_aead", "_nonces", "id")

    def __init__(self, key: bytes) -> None:
        self.id = hmac.digest(key, b"gated subject id", "sha256")[:8].hex()
        self._nonces = hmac.digest(key, b"gated subject nonce", "sha256")
        self._aead = AESGCM(hmac.digest(key, b"gated subject seal", "sha256"))

    def seal(self, holder: str, text: bytes) -> str:
        nonce = hmac.digest(self._nonces, text, "sha256")[:NONCE_BYTES]
        raw = nonce + self._aead.encrypt(nonce, text, holder.encode())
        return f"{FORM}.{holder}.{self.id}.{base64.b64encode(raw).decode()}"

    def open(self, sealed: Sealed) -> bytes:
        """Raises `Unreadable`."""
        try:
            raw = base64.b64decode(sealed.text, validate=True)
            return self._aead.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], sealed.holder.encode())
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise Unreadable("what was sealed is damaged") from error


class Sealed(NamedTuple):
    """The parts of what was sealed under a subject's key."""

    holder: str
    key: str
    text: str


def parsed(sealed: str) -> Sealed | None:
    """None: it was sealed under the key of the log's redaction."""
    form, _, rest = sealed.partition(".")
    return Sealed(*rest.split(".", 2)) if form == FORM and rest.count(".") >= 2 else None


def key_of(sealed: str | None) -> str | None:
    """The id of the subject's key that something was sealed under, if it was."""
    parts = None if sealed is None else parsed(sealed)
    return None if parts is None else parts.key


class Held(NamedTuple):
    """What is known of a holder: the key that its data is sealed under now, and the ids of the keys that were erased."""

    key: SubjectKey | None = None
    erased: tuple[str, ...] = ()


class Keys(Protocol):
    """Where a vault finds the keys of subjects."""

    def find(self, holder: str, *, to_seal: bool) -> Held: ...


class KeysAtHand:
    """Keys in memory, the only ones that a decision knows. `used` are the holders that were asked for."""

    def __init__(self, held: Mapping[str, Held] | None = None, *, whole: bool = False) -> None:
        """`whole`: there are no others (an auditor's, who reads and makes none)."""
        self.held: dict[str, Held] = dict(held or {})
        self.used: set[str] = set()
        self._whole = whole

    def find(self, holder: str, *, to_seal: bool) -> Held:
        self.used.add(holder)
        held = self.held.get(holder)
        if self._whole:
            return held or Held()
        if held is None or (to_seal and held.key is None):
            raise Unkeyed(holder, to_seal=to_seal)
        return held


class KeysForTrial:
    """The same keys; what is sealed meanwhile, which nobody writes, is sealed under one that is no subject's."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def find(self, holder: str, *, to_seal: bool) -> Held:
        return Held(_NOBODYS) if to_seal else self._keys.find(holder, to_seal=False)


_NOBODYS: Final = SubjectKey(bytes(KEY_BYTES))


def opened(sealed: Sealed, keys: Keys) -> bytes:
    """Raises `Unreadable`, with the reason: its key was erased, or is not here."""
    held = keys.find(sealed.holder, to_seal=False)
    if held.key is not None and held.key.id == sealed.key:
        return held.key.open(sealed)
    if sealed.key in held.erased:
        raise Unreadable(f"erased with the key {sealed.key} of their subject", sealed.key)
    raise Unreadable(f"sealed under the key {sealed.key} of their subject, which is not here", sealed.key)


# --- whose data it is ------------------------------------------------------------------------------------------------


def subject_of(kind: str, thread: ThreadId, run: RunId, labels: Mapping[str, str]) -> str:
    """The subject of what is said for a run, by `redact.subject`. A run without the label is its thread's.

    A label stands here as it is recorded: where it is personal data itself, without it.
    """
    if kind == "run":
        return f"run:{thread}/{run}"
    if kind.startswith(LABEL) and (name := kind.removeprefix(LABEL)) in labels:
        return f"{LABEL}{name}={labels[name]}"
    return f"thread:{thread}"
