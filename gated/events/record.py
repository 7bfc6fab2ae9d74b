"""One observation and its decisions, sealed for the log."""

from __future__ import annotations

import hashlib
from typing import Final, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gated.events.decisions import Decision
from gated.events.ids import RunId, ThreadId
from gated.events.observations import Observation

VERSION: Final = 1
GENESIS: Final = "0" * 64


class Body(Struct, frozen=True, gc=False):
    """The hashed part of a record. `policy` is the digest of the policy that was current; `flags` the logic
    flags that its decisions asked for.

    `redacted` are the places of the observation that were taken out before it was recorded; absent where that is none.
    Where a policy keeps them encrypted, `subject` says whose key they are sealed under, and `sealed` is the observation as it
    was said (its JSON, absent where that is what is recorded).
    """

    v: int
    thread: ThreadId
    run: RunId
    seq: int
    at: int
    kind: str
    observation: Observation
    decisions: tuple[Decision, ...]
    policy: str
    prev: str
    flags: tuple[int, ...] = ()
    input: int = 0  # position of the input in the bus's stream: what comes again at or below it was handled
    redacted: tuple[str, ...] | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    sealed: str | UnsetType = UNSET


class Record(Struct, frozen=True, gc=False):
    """A sealed record: `body` is the stored and hashed JSON, `hash` its SHA-256 in hex, `prev` the hash before it."""

    thread: ThreadId
    run: RunId
    seq: int
    at: int
    kind: str
    prev: str
    hash: str
    body: bytes


class UnsealError(msgspec.ValidationError):
    """A record's bytes are not what gated writes; the text says which record's."""


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_AS_SAID: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Body)


def encode(value: object) -> bytes:
    """Deterministic JSON of any part of the language: compact, keys sorted."""
    return _ENCODER.encode(value)


def as_said(observation: Observation) -> bytes:
    """JSON of an observation, its keys in the order in which they came."""
    return _AS_SAID.encode(observation)


def seal(body: Body) -> Record:
    """The record of a body: its bytes and their hash."""
    raw = _ENCODER.encode(body)
    digest = hashlib.sha256(raw).hexdigest()
    return Record(body.thread, body.run, body.seq, body.at, body.kind, body.prev, digest, raw)


_KINDS: Final = {said: str(said.__struct_config__.tag) for said in get_args(Observation)}


def kind_of(observation: Observation) -> str:
    return _KINDS[type(observation)]


def unseal(record: Record) -> Body:
    """The typed body of a record. Raises `UnsealError` where the bytes are not of this version's shape."""
    try:
        body = _DECODER.decode(record.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnsealError(f"record {record.seq} of thread `{record.thread}` cannot be read: {error}") from error
    if body.v > VERSION:
        newer = f"it has version {body.v}, and this gated reads up to {VERSION}: read it with the one that wrote it"
        raise UnsealError(f"record {record.seq} of thread `{record.thread}` cannot be read: {newer}")
    return body
