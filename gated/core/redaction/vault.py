"""The key of a log's redaction, kept outside the log: digests that nobody can guess a value from, and sealed values.

A digest is HMAC-SHA-256 of the canonical JSON, so that equal values have equal digests and a short one cannot be tried out.
What must be read once more (the arguments of a call that waits for people) is sealed with AES-SIV, which needs no randomness:
the same value seals to the same bytes, and a decision stays a function of its input. With `store: encrypted` it is sealed under
the key of its subject instead (`subjects`).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from copy import copy
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gated import canonical
from gated.core.redaction.subjects import Keys, KeysAtHand, KeysForTrial, Unreadable, opened, parsed

__all__ = ["SHOWN", "Unreadable", "Vault"]

SHOWN = 12  # hex digits of a digest that stand in a text


class Vault:
    """Digests and seals under one key. The key is never in a record, a message or an error."""

    __slots__ = ("_aead", "_digests", "_holder", "_keys", "_others")

    def __init__(self, key: bytes) -> None:
        self._others = hmac.digest(key, b"gated other keys", "sha256")
        self._digests = hmac.digest(key, b"gated redaction digest", "sha256")
        self._aead = AESSIV(hmac.digest(key, b"gated redaction seal", "sha512"))
        self._keys: Keys = KeysAtHand(whole=True)
        self._holder: str | None = None

    def with_keys(self, keys: Keys) -> Vault:
        """The same vault, which finds the keys of subjects there."""
        made = copy(self)
        made._keys = keys
        return made

    def for_trial(self) -> Vault:
        """The same vault for decisions that nobody writes: it never lacks a key to seal under."""
        return self.with_keys(KeysForTrial(self._keys))

    def of_subject(self, subject: str) -> Vault:
        """The same vault, which seals under the key of a subject."""
        made = copy(self)
        made._holder = self.holder(subject)
        return made

    def holder(self, subject: str) -> str:
        """What a subject is called where its name must not be read: 32 hex digits, keyed."""
        return hmac.digest(self.key_for("holders"), subject.encode(), "sha256")[:16].hex()

    def key_for(self, purpose: str) -> bytes:
        """A key of its own for something else that must not be tried out, 32 bytes."""
        return hmac.digest(self._others, purpose.encode(), "sha256")

    def digest(self, value: Any) -> str:
        """Hex digest of decoded JSON."""
        return hmac.digest(self._digests, canonical.encode(value), "sha256").hex()

    def args_digest(self, tool: str, args: Mapping[str, Any]) -> str:
        """What stands for a call whose arguments are redacted."""
        return self.digest({"args": args, "tool": tool})

    def seal(self, value: Any) -> str:
        """Decoded JSON, sealed. Raises `Unkeyed` where the subject's key is not at hand."""
        return self.seal_text(canonical.encode(value))

    def seal_text(self, text: bytes) -> str:
        if self._holder is None:
            return base64.b64encode(self._aead.encrypt(text, None)).decode()
        key = self._keys.find(self._holder, to_seal=True).key
        if key is None:
            raise Unreadable("of a subject that has no key here")
        return key.seal(self._holder, text)

    def open(self, sealed: str) -> Any:
        """Raises `Unreadable` where the value was sealed under another key, or its subject's was erased."""
        return msgspec.json.decode(self.open_text(sealed))

    def open_text(self, sealed: str) -> bytes:
        parts = parsed(sealed)
        if parts is not None:
            return opened(parts, self._keys)
        try:
            return self._aead.decrypt(base64.b64decode(sealed), None)
        except (InvalidTag, ValueError) as error:
            raise Unreadable("sealed under another key than this gate's") from error
