"""Signed webhooks: what the gate signs and a receiver checks, in one place.

`Gated-Signature: v1=<hex>` is HMAC-SHA-256 of `v1:<Gated-Timestamp>:<body>` under a shared secret; the timestamp, in seconds,
bounds how long a message that was overheard can be sent again.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

TIMESTAMP: Final = "Gated-Timestamp"
SIGNATURE: Final = "Gated-Signature"
SCHEME: Final = "v1"


class BadSignature(ValueError):
    """The message is not from who has the secret, or too old. The text says which."""


def sign(secret: bytes, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed message."""
    return {TIMESTAMP: str(timestamp), SIGNATURE: f"{SCHEME}={_digest(secret, str(timestamp), body)}"}


def verify(secret: bytes, headers: Mapping[str, str], body: bytes, now: float, tolerance: float = 300.0) -> None:
    """Raises `BadSignature`. `body` are the bytes as they came, `now` seconds since 1970; header names in any case."""
    found = {name.lower(): value for name, value in headers.items()}
    timestamp, signature = found.get(TIMESTAMP.lower(), ""), found.get(SIGNATURE.lower(), "")
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise BadSignature(f"the header `{TIMESTAMP}` is missing, or no time")
    if not hmac.compare_digest(signature.encode(), f"{SCHEME}={_digest(secret, timestamp, body)}".encode()):
        raise BadSignature("the signature does not fit the message")
    if abs(now - int(timestamp)) > tolerance:
        raise BadSignature(f"the message is older (or newer) than {tolerance:g}s")


def _digest(secret: bytes, timestamp: str, body: bytes) -> str:
    return hmac.new(secret, f"{SCHEME}:{timestamp}:".encode() + body, "sha256").hexdigest()
