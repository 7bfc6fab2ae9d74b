"""Sealed checkpoints: what a log was at one moment, in a form that can be kept elsewhere and checked by others.

The text is a C2SP tlog-checkpoint (https://c2sp.org/tlog-checkpoint) in a signed note (https://c2sp.org/signed-note) of Ed25519:
origin, number of threads, RFC 6962 root over the heads of all threads sorted by name; as extension lines the number of records
and the hash of the last one. The heads are a map and not a log, so there are no consistency proofs between two checkpoints: a
verifier that holds the log computes the root again at that record.
This module signs nothing and reads no files; a signature is made by the function it is given.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

from gated.core.chain import Anchors, ChainChecker, Damage, Heads, merkle_root
from gated.events import Record
from gated.units import some

_ED25519: Final = b"\x01"  # the signature type of the signed-note page
_DASH: Final = "\N{EM DASH} "
_RECORDS, _HEAD = "records ", "head "


class CheckpointError(ValueError):
    """A note that is not a checkpoint, or that no known key signed."""


class Checkpoint(Struct, frozen=True):
    """A log of `records` records, the last with hash `head`, of `threads` threads whose heads have the Merkle root `root`."""

    origin: str
    threads: int
    root: bytes
    records: int
    head: str


class Key(Struct, frozen=True):
    """A public key and the name it signs under."""

    name: str
    public: bytes

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        """The verifier key in the usual one-line form, `name+id+key`."""
        return f"{self.name}+{self.id.hex()}+{_base64(_ED25519 + self.public)}"


def parse_key(line: str) -> Key:
    """The key of a `name+id+key` line. Raises `CheckpointError`."""
    try:
        name, _, encoded = line.strip().split("+", 2)
        raw = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise CheckpointError(f"`{line.strip()}` is not a verifier key: write `name+id+key`") from error
    key = Key(name, raw[1:])
    if raw[:1] != _ED25519 or len(key.public) != 32 or str(key) != line.strip() or not is_name(name):
        raise CheckpointError(f"`{line.strip()}` is not a verifier key of Ed25519, or was cut")
    return key


def is_name(name: str) -> bool:
    """Whether a name may stand in a note: not empty, no space, no plus, nothing that is not printed."""
    return bool(name) and name.isprintable() and not any(c.isspace() or c == "+" for c in name)


def checkpoint(origin: str, records: int, head: str, heads: Heads) -> Checkpoint:
    return Checkpoint(origin, len(heads), merkle_root(heads), records, head)


def write(made: Checkpoint) -> str:
    """The text that is signed."""
    return f"{made.origin}\n{made.threads}\n{_base64(made.root)}\n{_RECORDS}{made.records}\n{_HEAD}{made.head}\n"


def sign(made: Checkpoint, key: Key, signer: Callable[[bytes], bytes]) -> str:
    """The signed note of a checkpoint."""
    text = write(made)
    return f"{text}\n{_DASH}{key.name} {_base64(key.id + signer(text.encode()))}\n"


def parse(text: str) -> Checkpoint:
    """The checkpoint of a text that was verified. Raises `CheckpointError`."""
    lines = text.split("\n")
    if len(lines) != 6 or not lines[3].startswith(_RECORDS) or not lines[4].startswith(_HEAD):
        raise CheckpointError("not a checkpoint of gated: origin, threads, root, `records` and `head` are its lines")
    try:
        root = base64.b64decode(lines[2], validate=True)
        made = Checkpoint(lines[0], int(lines[1]), root, int(lines[3].removeprefix(_RECORDS)), lines[4].removeprefix(_HEAD))
    except ValueError as error:
        raise CheckpointError(f"not a checkpoint of gated: {error}") from error
    if write(made) != text or len(root) != 32 or min(made.threads, made.records) < 0:  # each is written in one way only
        raise CheckpointError("not a checkpoint of gated: it is not written as one is")
    return made


def verify(note: str, keys: Iterable[Key]) -> Checkpoint:
    """The checkpoint of a note that one of the keys signed. Raises `CheckpointError`.

    Signatures of unknown keys are passed over; a false one under a known name and id refuses the note.
    """
    text, signatures = _split(note)
    known = {(key.name, key.id): key for key in keys}
    good = False
    for name, raw in signatures:
        key = known.get((name, raw[:4]))
        if key is None:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(key.public).verify(raw[4:], text.encode())
        except InvalidSignature as error:
            raise CheckpointError(f"the signature of `{name}` does not fit the checkpoint") from error
        good = True
    if not good:
        names = ", ".join(f"`{name}`" for name, _ in signatures)
        raise CheckpointError(f"no known key signed the checkpoint, only {names}")
    return parse(text)


def split_notes(text: str) -> list[str]:
    """The notes of a file that they were appended to, oldest first."""
    notes, lines = [], text.splitlines(keepends=True)
    start = 0
    for index, line in enumerate(lines):
        if line.startswith(_DASH) and not (index + 1 < len(lines) and lines[index + 1].startswith(_DASH)):
            notes.append("".join(lines[start : index + 1]))
            start = index + 1
    if any(line.strip() for line in lines[start:]):
        raise CheckpointError("the last checkpoint has no signature: it was cut")
    return notes


def _split(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    text, blank, tail = note.rpartition("\n\n")
    if not blank or not tail.endswith("\n"):
        raise CheckpointError("not a signed note: a blank line and signatures end one")
    signatures = []
    for line in tail[:-1].split("\n"):
        name, space, encoded = line.removeprefix(_DASH).partition(" ")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise CheckpointError(f"not a signed note: `{line}` is not a signature") from error
        if not line.startswith(_DASH) or not space or not is_name(name) or len(raw) < 5 or _base64(raw) != encoded:
            raise CheckpointError(f"not a signed note: `{line}` is not a signature")
        signatures.append((name, raw))
    return text + "\n", signatures


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- checking a log against its checkpoints --------------------------------------------------------------------------


class Unsigned(Struct, frozen=True):
    """A root over the heads after `records` records that somebody kept; nobody signed it."""

    records: int
    root: bytes


class SealedChecker:
    """Checks a whole log, from its first record, against checkpoints that were verified.

    What lies before `since` was checked then: its hashes are believed, and that they lead to that checkpoint is checked.
    """

    def __init__(
        self, checkpoints: Iterable[Checkpoint | Unsigned], since: Checkpoint | None = None, anchors: Anchors | None = None
    ) -> None:
        self.chain = ChainChecker(anchors)
        self._anchors = anchors
        self._since = 0 if since is None else since.records
        known = list(checkpoints) if since is None else [*checkpoints, since]
        self._expected: Mapping[int, list[Checkpoint | Unsigned]] = _by_records(known)
        self._last = max(self._expected, default=0)

    def feed(self, position: int, record: Record) -> Damage | None:
        if self._anchors is not None and position > self._anchors.position:
            damage = self._pass_anchors(self._anchors)
            if damage is not None:
                return damage
        believed = self.chain.records < self._since
        damage = self.chain.believe(position, record) if believed else self.chain.feed(position, record)
        if damage is not None:
            return damage
        for expected in self._expected.get(self.chain.records, ()):
            if self._anchors is None and not _seals(expected, self.chain.records, record.hash, self.chain.heads):
                return Damage(position, record.thread, record.seq, "the log up to here is not the one that was sealed")
        return None

    def _pass_anchors(self, anchors: Anchors) -> Damage | None:
        """What is kept and the heads of what went are what was sealed when it went. What was sealed before needs the archive."""
        self._anchors = None
        for expected in self._expected.get(anchors.position, ()):
            if not _seals(expected, anchors.position, anchors.head, self.chain.heads):
                return Damage(anchors.position, "", 0, "what is kept and what was archived are not what was sealed")
        return None

    def finish(self) -> Damage | None:
        """Whether the log reaches as far as its last checkpoint."""
        damage = None if self._anchors is None else self._pass_anchors(self._anchors)
        damage = damage or self.chain.finish()
        if damage is not None:
            return damage
        if self.chain.records >= self._last:
            return None
        what = f"the log has {some(self.chain.records, 'record')}, a checkpoint {self._last}: its end was cut off"
        return Damage(self.chain.records, "", 0, what)


def _seals(expected: Checkpoint | Unsigned, records: int, head: str, heads: Heads) -> bool:
    if isinstance(expected, Unsigned):
        return expected.root == merkle_root(heads)
    return expected == checkpoint(expected.origin, records, head, heads)


def _by_records(checkpoints: Iterable[Checkpoint | Unsigned]) -> dict[int, list[Checkpoint | Unsigned]]:
    found: dict[int, list[Checkpoint | Unsigned]] = {}
    for made in checkpoints:
        found.setdefault(made.records, []).append(made)
    return found
