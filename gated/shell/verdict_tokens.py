"""Verdict tokens: what an agent shows to a tool (or to a proxy before it) to prove that the gate allowed this very call.

A token is a JWT signed with Ed25519, so that any language's library can check it. It names the tool as its audience, the
arguments by the digest of their canonical JSON, and ends when the call would lapse. Ed25519 signs without randomness, so the
same verdict has the same token whenever it is published.
INVARIANT: only a call that may run has a token, and only where its arguments are known as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gated import canonical
from gated.core.redaction.vault import Vault
from gated.events import CallDecided, IntentsReceived, Observation, RunId, ThreadId, TicketCall

ISSUER: Final = "gated"


class VerdictSigner:
    """Signs under one private key; `public` is its other half in PEM form, for the tools."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def token(
        self, decided: CallDecided, args: Mapping[str, Any] | None, at: int, agent: str, run: tuple[ThreadId, RunId]
    ) -> str | None:
        """The token of a verdict, `args` being what may run; None where nothing may. `at` in µs."""
        if decided.decision != "allow" or not decided.execute or decided.admission is None or args is None:
            return None
        thread, run_id = run
        claims = {
            "iss": ISSUER,
            "sub": agent,
            "aud": decided.tool,
            "jti": f"{thread}/{run_id}/{decided.call}",
            "iat": at // 1_000_000,
            "exp": decided.admission.due // 1_000_000,
            "args_sha256": canonical.args_digest(decided.tool, args),
        }
        return jwt.encode(claims, self._private, algorithm="EdDSA")


def arguments(
    decided: CallDecided, observation: Observation, waiting: Iterable[TicketCall], vault: Vault
) -> Mapping[str, Any] | None:
    """What may run: as edited, as asked in the message that is answered, or as on the ticket that was approved."""
    if decided.args is not None:
        return decided.args
    if isinstance(observation, IntentsReceived):
        return next((wanted.args for wanted in observation.calls if wanted.id == decided.call), None)
    for call in waiting:
        if call.call == decided.call:
            opened: Mapping[str, Any] = call.args if call.sealed is None else vault.open(call.sealed)
            return opened
    return None
