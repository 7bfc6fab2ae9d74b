"""Replay: decide every record of a log again and report the first decision that comes out differently.

Replaying needs the records and the policies they name; the derived record must equal the stored one byte for byte, its hash
included. Where a rule would have to read what was redacted, a record is *not replayable*: its decisions are taken as they
stand, and it is named. With the keys what was kept encrypted is read again, until it is erased.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from gated.core.decide import Step, record
from gated.core.fold import fold
from gated.core.policy import Policy
from gated.core.redaction.opened import said_in
from gated.core.redaction.subjects import key_of
from gated.core.redaction.vault import Unreadable, Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.core.unreadable import refuse_unreadable
from gated.events import Body, PolicyBound, Record, ThreadId, encode, unseal
from gated.strict_json import Path, path_text

Policies = Callable[[str], Policy | None]

LISTED: Final = 1000
_OTHERWISE: Final = ("another encoding of the same record", "")


class Difference(Struct, frozen=True):
    """The first place where a replay leaves the log. `what` names the part: a decision's kind, or the field."""

    thread: str
    run: str
    seq: int
    what: str
    stage: str | None
    recorded: Any
    derived: Any


class NotReplayable(Struct, frozen=True):
    """A record that was not decided again, and why not."""

    thread: str
    run: str
    seq: int
    why: str


class Replayer:
    """Replays records as they come, thread by thread; each thread's records in order.

    `records` were decided again, `skipped` were not: the first `LISTED` of them are in `not_replayable`.
    """

    def __init__(
        self,
        policies: Policies,
        begun: Mapping[ThreadId, ThreadState] = MappingProxyType({}),
        vault: Vault | None = None,
        erased: Set[str] = frozenset(),
    ) -> None:
        """`begun` are the states of threads whose first records are not here, `erased` the keys of subjects that are gone."""
        self._policies, self._vault, self._erased = policies, vault, erased
        self._states = dict(begun)
        self._known: dict[str, Policy] = {}
        for digest in {digest for state in begun.values() for digest in state.policies}:
            self._policy(digest)
        self.records = self.skipped = 0
        self.not_replayable: list[NotReplayable] = []

    def feed(self, stored: Record) -> Difference | None:
        """Decide one record again. `None`: it came out byte for byte."""
        body = unseal(stored)
        policy = self._policy(body.policy)
        if policy is None:
            return _difference(body, "policy", body.policy, "the log does not hold this policy")
        if isinstance(body.observation, PolicyBound):
            self._policy(body.observation.policy)
        state = self._states.get(body.thread) or ThreadState(body.thread)
        try:
            made, derived = self._again(policy, state, body)
        except Unreadable as unreadable:
            gone = unreadable.key in self._erased and "erased" not in str(unreadable)
            self._skip(state, body, stored.hash, f"{unreadable}{f', and erased with the key {unreadable.key}' * gone}")
            return None
        if derived is None or (derived.body, derived.hash) != (stored.body, stored.hash):
            return _compare(body, stored, derived)
        self._states[body.thread] = made.state
        self.records += 1
        return None

    def _again(self, policy: Policy, state: ThreadState, body: Body) -> tuple[Step, Record | None]:
        """With the keys, on what was said; where that is not to be had, on what was recorded."""
        why = ""
        if self._vault is not None:
            try:
                said = said_in(body, self._vault)
                registry = Registry(policy, self._known, self._vault, again=True, flags=body.flags)
                return record(registry, state, body.run, said, body.at, body.input)
            except Unreadable as unreadable:
                why = f" ({unreadable})" if unreadable.key is not None else ""
        registry = Registry(policy, self._known, again=True, flags=body.flags)
        try:
            refuse_unreadable(registry, state, body)
            return record(registry, state, body.run, body.observation, body.at, body.input, body)
        except Unreadable as unreadable:
            key = unreadable.key or (None if body.sealed is UNSET else key_of(body.sealed))
            raise Unreadable(f"{unreadable}{why}", key) from unreadable

    def _skip(self, state: ThreadState, body: Body, hash: str, why: str) -> None:
        self._states[body.thread] = fold(self._known, state, body, hash)
        self.skipped += 1
        if len(self.not_replayable) < LISTED:
            self.not_replayable.append(NotReplayable(body.thread, body.run, body.seq, why))

    def _policy(self, digest: str) -> Policy | None:
        if digest not in self._known:
            found = self._policies(digest)
            if found is None:
                return None
            self._known[digest] = found
        return self._known[digest]


def replay(records: Iterable[Record], policies: Policies) -> Difference | None:
    """The first difference between a log and what the core makes of it, or None."""
    replayer = Replayer(policies)
    for stored in records:
        difference = replayer.feed(stored)
        if difference is not None:
            return difference
    return None


def _compare(recorded: Body, stored: Record, again: Record | None) -> Difference:
    if again is None:
        return _difference(recorded, "decisions", _plain(recorded.decisions), "nothing is decided")
    if again.body == stored.body:
        return _difference(recorded, "hash", stored.hash, again.hash)
    derived = unseal(again)
    for position, theirs in enumerate(recorded.decisions):
        ours = derived.decisions[position] if position < len(derived.decisions) else None
        if ours is None or encode(ours) != encode(theirs):
            stage = getattr(theirs, "stage", None)
            return _difference(recorded, str(_plain(theirs)["kind"]), _plain(theirs), _plain(ours), stage)
    if len(derived.decisions) > len(recorded.decisions):
        extra = derived.decisions[len(recorded.decisions)]
        return _difference(recorded, "decisions", "nothing more", _plain(extra))
    for field in recorded.__struct_fields__:
        if getattr(recorded, field) != getattr(derived, field):
            return _difference(recorded, field, _plain(getattr(recorded, field)), _plain(getattr(derived, field)))
    return _difference(recorded, "bytes", *_unknown(json.loads(stored.body), json.loads(again.body)))


def _unknown(recorded: Any, derived: Any, place: Path = ()) -> tuple[Any, Any]:
    """What stands in a record's bytes that is read and not known here; without such, they are written otherwise."""
    if isinstance(recorded, dict) and isinstance(derived, dict):
        for key in recorded:
            if key not in derived:
                return {path_text((*place, key)): recorded[key]}, "this gated knows no such field"
        inner = [((*place, key), recorded[key], derived[key]) for key in recorded]
    elif isinstance(recorded, list) and isinstance(derived, list):
        inner = [((*place, n), *pair) for n, pair in enumerate(zip(recorded, derived, strict=False))]
    else:
        inner = []
    found = (_unknown(old, new, where) for where, old, new in inner)
    return next((said for said in found if said != _OTHERWISE), _OTHERWISE)


def _difference(body: Body, what: str, recorded: Any, derived: Any, stage: str | None = None) -> Difference:
    return Difference(body.thread, body.run, body.seq, what, stage, recorded, derived)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
