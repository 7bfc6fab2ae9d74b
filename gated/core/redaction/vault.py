"""The key of a log's redaction, kept outside the log: digests that nobody can guess a value from, and sealed values.

A digest is HMAC-SHA-256 of the canonical JSON, so that equal values have equal digests and a short one cannot be tried out.
What must be read once more (the arguments of a call that waits for people) is sealed with AES-SIV, which needs no randomness:
the same value seals to the same bytes, and a decision stays a function of its input.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gated import canonical

SHOWN = 12  # hex digits of a digest that stand in a text


class Unreadable(Exception):
    """A value that was taken out of the log would have to be read, and cannot be."""


class Vault:
    """Digests and seals under one key. The key is never in a record, a message or an error."""

    __slots__ = ("_aead", "_digests", "_others")

    def __init__(self, key: bytes) -> None:
        self._others = hmac.digest(key, b"gated other keys", "sha256")
        self._digests = hmac.digest(key, b"gated redaction digest", "sha256")
        self._aead = AESSIV(hmac.digest(key, b"gated redaction seal", "sha512"))

    def key_for(self, purpose: str) -> bytes:
        """A key of its own for something else that must not be tried out, 32 bytes."""
        return hmac.digest(self._others, purpose.encode(), "sha256")

    def digest(self, value: Any) -> str:
        """Hex digest of decoded JSON."""
        return hmac.new(self._digests, canonical.encode(value), hashlib.sha256).hexdigest()

    def args_digest(self, tool: str, args: Mapping[str, Any]) -> str:
        """What stands for a call whose arguments are redacted."""
        return self.digest({"args": args, "tool": tool})

    def seal(self, value: Any) -> str:
        return base64.b64encode(self._aead.encrypt(canonical.encode(value), None)).decode()

    def open(self, sealed: str) -> Any:
        """Raises `Unreadable` where the value was sealed under another key."""
        try:
            return msgspec.json.decode(self._aead.decrypt(base64.b64decode(sealed), None))
        except (InvalidTag, ValueError) as error:
            raise Unreadable("it was sealed under another key than this one") from error
