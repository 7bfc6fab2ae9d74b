"""For tools: check the token of a verdict before running, so that an agent cannot simply leave the gate out.

    grant = verify_token(token, public_key, "refund", {"amount": 20})

The key is the file `verdict.key.pub` of a gate that was started with `--sign-verdicts`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final

import jwt
from msgspec import Struct

from gated import canonical
from gated.client.errors import GateError

REQUIRED: Final = ["sub", "aud", "jti", "exp", "args_sha256"]


class TokenRefused(GateError):
    """The token does not allow this call: do not run it."""


class Grant(Struct, frozen=True):
    """What a token grants, once: a tool remembers `id` until `expires` (seconds since 1970) and runs no id twice."""

    id: str
    agent: str
    expires: int


def verify_token(token: str | None, public_key: str, tool: str, args: Mapping[str, Any]) -> Grant:
    """The grant of a token for exactly this tool and these arguments. Raises `TokenRefused`."""
    if token is None:
        raise TokenRefused(f"`{tool}` was called without the token of a verdict")
    try:
        claims = jwt.decode(token, public_key, ["EdDSA"], {"require": REQUIRED}, audience=tool, issuer="gated")
        asked = canonical.args_digest(tool, args)
    except (jwt.InvalidTokenError, ValueError) as error:
        raise TokenRefused(f"the token of `{tool}` does not hold: {error}") from error
    if not hmac.compare_digest(asked, str(claims["args_sha256"])):
        raise TokenRefused(f"the token of `{tool}` was given for other arguments")
    return Grant(claims["jti"], claims["sub"], claims["exp"])
