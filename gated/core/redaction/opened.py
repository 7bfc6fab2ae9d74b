"""A record as it was said: what was taken out of it put back, as far as its keys are there."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gated.core.redaction.cover import MACHINE_KEY, revealed
from gated.core.redaction.vault import Unreadable, Vault
from gated.events import Body, CallDecided, Decision, IntentsReceived, Observation, TicketCall, TicketOpened

_DECODER: Final = msgspec.json.Decoder(Observation)


def said_in(body: Body, vault: Vault) -> Observation:
    """The observation as it was decided. Raises `Unreadable` where something of it is gone, or was never kept."""
    if not isinstance(body.sealed, UnsetType):
        said: Observation = _DECODER.decode(vault.open_text(body.sealed))
        return said
    if body.redacted is UNSET or body.redacted == (MACHINE_KEY,):
        return body.observation
    raise Unreadable("redacted")


def opened_body(body: Body, vault: Vault) -> Body:
    """The record with all that can be opened; what cannot stays as it is recorded."""
    try:
        body = replace(body, observation=_known(said_in(body, vault), body.observation))
    except Unreadable:
        pass  # it is shown, or compared, as it stands
    return replace(body, decisions=tuple(_decision(decision, vault) for decision in body.decisions))


def _known(said: Observation, recorded: Observation) -> Observation:
    """What was said, its calls under the digests that the log knows them by: a keyed one is no digest of the arguments."""
    if not isinstance(said, IntentsReceived) or not isinstance(recorded, IntentsReceived):
        return said
    pairs = zip(said.calls, recorded.calls, strict=False)  # of as many, but in a log that somebody made
    return replace(said, calls=tuple(replace(call, args_sha256=known.args_sha256) for call, known in pairs))


def _decision(decision: Decision, vault: Vault) -> Decision:
    try:
        if isinstance(decision, CallDecided):
            return revealed(decision, vault)
        if isinstance(decision, TicketOpened):
            return replace(decision, calls=tuple(_call(call, vault) for call in decision.calls))
    except Unreadable:
        pass
    return decision


def _call(call: TicketCall, vault: Vault) -> TicketCall:
    return call if call.sealed is None else replace(call, args=vault.open(call.sealed), sealed=None)
