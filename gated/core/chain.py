"""The hash chain of a log: what makes a changed byte show, and the lines of an export.

A record's hash is the SHA-256 of its stored body; the body holds the hash before it. An export is one JSON line a record, the
body with its hash put in, in sorted keys; policies are lines of their own, so that an export replays by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from gated.events import GENESIS, Record, RunId, ThreadId, encode


class Damage(Struct, frozen=True):
    """The first place where a log is not what it was: position, thread, record, and what is wrong."""

    position: int
    thread: str
    seq: int
    what: str


class ChainChecker:
    """Checks records as they come; each thread's records in order."""

    def __init__(self) -> None:
        self._heads: dict[ThreadId, tuple[int, str]] = {}
        self.records = 0

    @property
    def heads(self) -> Mapping[ThreadId, tuple[int, str]]:
        """The last record of every thread: seq and hash."""
        return self._heads

    def feed(self, position: int, record: Record) -> Damage | None:
        seq, head = self._heads.get(record.thread, (0, GENESIS))
        what = _wrong(record, seq, head)
        if what is not None:
            return Damage(position, record.thread, record.seq, what)
        self._heads[record.thread] = (record.seq, record.hash)
        self.records += 1
        return None


class _Head(Struct):
    """The part of a body that the stored columns repeat."""

    thread: str
    run: str
    seq: int
    at: int
    kind: str
    prev: str


_HEAD = msgspec.json.Decoder(_Head)


def _wrong(record: Record, seq: int, head: str) -> str | None:
    if hashlib.sha256(record.body).hexdigest() != record.hash:
        return "the body does not have the recorded hash"
    if record.seq != seq + 1:
        return f"record {record.seq} follows record {seq}"
    if record.prev != head:
        return "the previous hash is not that of the record before"
    try:
        body = _HEAD.decode(record.body)
    except msgspec.MsgspecError as error:
        return f"the body cannot be read: {error}"
    for field in _Head.__struct_fields__:
        if getattr(body, field) != getattr(record, field):
            return f"`{field}` is not what the body says"
    return None


def export_line(record: Record) -> bytes:
    """A record as a line of JSON, its hash among its keys."""
    fields = msgspec.json.decode(record.body, type=dict[str, msgspec.Raw])
    return encode({**fields, "hash": record.hash})


def policy_line(digest: str, text: bytes) -> bytes:
    return encode({"policy_sha256": digest, "policy": msgspec.Raw(text)})


def import_line(line: bytes) -> Record | tuple[str, bytes]:
    """A record, or a policy's digest and text. Raises `ValueError` for what is neither."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a line of an export: {error}") from error
    if "policy_sha256" in fields:
        return msgspec.json.decode(fields["policy_sha256"], type=str), bytes(fields["policy"])
    try:
        hash_ = msgspec.json.decode(fields.pop("hash"), type=str)
        body = encode(fields)
        head = _HEAD.decode(body)
    except (KeyError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a record: {error}") from error
    return Record(ThreadId(head.thread), RunId(head.run), head.seq, head.at, head.kind, head.prev, hash_, body)


def merkle_root(heads: Mapping[ThreadId, tuple[int, str]]) -> bytes:
    """The RFC 6962 tree hash over the heads of all threads, sorted by thread."""
    leaves = [encode([thread, *heads[thread]]) for thread in sorted(heads)]
    return _tree([hashlib.sha256(b"\x00" + leaf).digest() for leaf in leaves])


def _tree(hashes: list[bytes]) -> bytes:
    if not hashes:
        return hashlib.sha256(b"").digest()
    while len(hashes) > 1:
        pairs: Iterator[bytes] = iter(hashes)
        hashes = [hashlib.sha256(b"\x01" + left + right).digest() if right else left for left, right in _pairs(pairs)]
    return hashes[0]


def _pairs(items: Iterator[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    for left in items:
        yield left, next(items, None)
