"""The hash chain of a log: what makes a changed byte show, and the lines of an export.

A record's hash is the SHA-256 of its stored body; the body holds the hash before it, one chain per thread. What the chain cannot
show is a tail that was cut off: that takes a head kept elsewhere (`checkpoint.py`). An export is one JSON line a record, the body
with its hash put in, keys sorted; policies and checkpoints are lines of their own, so that an export replays by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from gated.events import GENESIS, Record, RunId, ThreadId, encode
from gated.units import some

Heads = Mapping[ThreadId, tuple[int, str]]  # the last record of every thread: seq and hash


class Damage(Struct, frozen=True):
    """The first place where a log is not what it was: position, thread, record, and what is wrong."""

    position: int
    thread: str
    seq: int
    what: str


class Anchors(Struct, frozen=True):
    """What was archived out of a log: up to `position`, whose record had the hash `head`, `records` records are elsewhere.

    `heads` are the last records of the threads that went: what comes later follows them.
    """

    position: int
    head: str
    records: int
    heads: dict[ThreadId, tuple[int, str]]


class ChainChecker:
    """Checks records in the order of the log. After a damage it is where it was before.

    `records` counts what was archived before too, so that it is the number that a checkpoint knows.
    """

    def __init__(self, anchors: Anchors | None = None) -> None:
        self._anchors = anchors
        self._heads: dict[ThreadId, tuple[int, str]] = {} if anchors is None else dict(anchors.heads)
        self._position: int | None = None if anchors is None else 0
        self.records = 0
        self.archived = 0

    @property
    def heads(self) -> Heads:
        """The last record of every thread: seq and hash."""
        return self._heads

    def feed(self, position: int, record: Record) -> Damage | None:
        what = self._gap(position) or _wrong(record, *self._heads.get(record.thread, (0, GENESIS)))
        if what is not None:
            return Damage(position, record.thread, record.seq, what)
        self._take(position, record)
        return None

    def believe(self, position: int, record: Record) -> Damage | None:
        """Take a record's hash as it is stored; its place in the log and in its thread is checked."""
        seq, head = self._heads.get(record.thread, (0, GENESIS))
        what = self._gap(position)
        if what is None and (record.seq, record.prev) != (seq + 1, head):
            what = f"record {record.seq} does not follow record {seq}"
        if what is not None:
            return Damage(position, record.thread, record.seq, what)
        self._take(position, record)
        return None

    def _take(self, position: int, record: Record) -> None:
        left_out = 0 if self._position is None else position - self._position - 1
        self._heads[record.thread] = (record.seq, record.hash)
        self._position = position
        self.archived += left_out
        self.records += 1 + left_out

    def finish(self) -> Damage | None:
        """Whether all that is not here is what was archived."""
        if self._anchors is None:
            return None
        tail = max(0, self._anchors.position - (self._position or 0))
        self.archived, self.records = self.archived + tail, self.records + tail
        if self.archived == self._anchors.records:
            return None
        what = f"{some(self.archived, 'record')} not here, and {self._anchors.records:,} archived"
        return Damage(self._anchors.position, "", 0, what)

    def _gap(self, position: int) -> str | None:
        """A log may begin anywhere; from there on no position is missing but those that were archived."""
        if self._position is None or position == self._position + 1:
            return None
        if self._anchors is not None and self._position < position - 1 <= self._anchors.position:
            return None
        return f"position {position} follows position {self._position}"


class Verified(Struct, frozen=True):
    """How far a log is intact, and the first damage where there is one."""

    records: int
    heads: Heads
    damage: Damage | None


def verify_records(records: Iterable[tuple[int, Record]]) -> Verified:
    """Check a log given as positions and records. Reading stops at the first damage."""
    checker = ChainChecker()
    damage = next((d for position, record in records if (d := checker.feed(position, record)) is not None), None)
    return Verified(checker.records, checker.heads, damage)


def wrong_policy(policies: Mapping[str, bytes]) -> Damage | None:
    """The first policy of a log whose text is not the one that its digest names."""
    for digest, text in policies.items():
        if not is_policy(digest, text):
            return Damage(0, "", 0, f"the policy `{digest}` does not have this digest")
    return None


def is_policy(digest: str, text: bytes) -> bool:
    """Whether a policy's canonical text is the one that a digest names."""
    return hashlib.sha256(text).hexdigest() == digest


class Columns(Struct):
    """The part of a body that the stored columns repeat."""

    thread: str
    run: str
    seq: int
    at: int
    kind: str
    prev: str


COLUMNS: Final = msgspec.json.Decoder(Columns)


def _wrong(record: Record, seq: int, head: str) -> str | None:
    if hashlib.sha256(record.body).hexdigest() != record.hash:
        return "the body does not have the recorded hash"
    if record.seq != seq + 1:
        return f"record {record.seq} follows record {seq}"
    if record.prev != head:
        return "the previous hash is not that of the record before"
    try:
        body = COLUMNS.decode(record.body)
    except msgspec.MsgspecError as error:
        return f"the body cannot be read: {error}"
    for field in Columns.__struct_fields__:
        if getattr(body, field) != getattr(record, field):
            return f"`{field}` is not what the body says"
    return None


def merkle_root(heads: Heads) -> bytes:
    """The RFC 6962 tree hash over the heads of all threads, sorted by thread."""
    leaves = [encode([thread, *heads[thread]]) for thread in sorted(heads)]
    return tree_hash(leaves)


def tree_hash(leaves: Iterable[bytes]) -> bytes:
    """The RFC 6962 Merkle tree hash of leaves: an odd node rises unchanged."""
    hashes = [hashlib.sha256(b"\x00" + leaf).digest() for leaf in leaves]
    if not hashes:
        return hashlib.sha256(b"").digest()
    while len(hashes) > 1:
        pairs = _pairs(iter(hashes))
        hashes = [hashlib.sha256(b"\x01" + left + right).digest() if right else left for left, right in pairs]
    return hashes[0]


def _pairs(items: Iterator[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    for left in items:
        yield left, next(items, None)


# --- the lines of an export ------------------------------------------------------------------------------------------


class CheckpointNote(Struct, frozen=True):
    """A line of an export that holds a checkpoint: the signed note as it is stored, and the record it stands behind."""

    position: int
    note: str


def export_line(record: Record) -> bytes:
    """A record as a line of JSON, its hash among its keys. Raises `ValueError` for a body that is no JSON object."""
    try:
        fields = msgspec.json.decode(record.body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"record {record.seq} of thread `{record.thread}` cannot be exported: {error}") from error
    return encode({**fields, "hash": record.hash})


def policy_line(digest: str, text: bytes) -> bytes:
    return encode({"policy_sha256": digest, "policy": msgspec.Raw(text)})


def checkpoint_line(position: int, note: str) -> bytes:
    return encode({"checkpoint": note, "position": position})


def parse_line(line: bytes) -> Record | tuple[str, bytes] | CheckpointNote:
    """A record, a policy's digest and text, or a checkpoint. Raises `ValueError` for what is none of them."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a line of an export: {error}") from error
    try:
        if "policy_sha256" in fields:
            return _policy(msgspec.json.decode(fields["policy_sha256"], type=str), bytes(fields["policy"]))
        if "checkpoint" in fields:
            position = msgspec.json.decode(fields["position"], type=int)
            return CheckpointNote(position, msgspec.json.decode(fields["checkpoint"], type=str))
        return _record(msgspec.json.decode(fields.pop("hash"), type=str), encode(fields))
    except KeyError as error:
        raise ValueError(f"not a line of an export: the key `{error.args[0]}` is missing") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a line of an export: {error}") from error


def _policy(digest: str, text: bytes) -> tuple[str, bytes]:
    if not is_policy(digest, text):
        raise ValueError(f"the policy does not have the digest `{digest}`")
    return digest, text


def _record(digest: str, body: bytes) -> Record:
    c = COLUMNS.decode(body)
    return Record(ThreadId(c.thread), RunId(c.run), c.seq, c.at, c.kind, c.prev, digest, body)
