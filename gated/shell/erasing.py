"""What a serialiser does with the keys of subjects: has them at hand for what it decides, and erases them when it is told to.

Erasing is, in this order: note it beside the keys, destroy the key, record the event in every run that holds data of the subject.
What a crash kept from being recorded is recorded at the next start.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

import anyio
import structlog
from msgspec import Struct
from msgspec.structs import replace

from gated.core.decide import record
from gated.core.redaction.subjects import KeysAtHand, Unkeyed, subject_of
from gated.core.redaction.vault import Vault
from gated.core.state import RunState, ThreadState
from gated.core.turn import Registry
from gated.events import ErasureRequested, Record, RunId, Sender, ThreadId, UnsealError, encode, unseal
from gated.shell.keyring import Erasure, Keyring
from gated.shell.log import EventLog, LogUnavailable, ReadableLog, ThreadDamaged
from gated.shell.log.anchors import archived_states
from gated.shell.log.open import policies_of
from gated.shell.said import Said
from gated.shell.threads import Threads

NO_FOLDER: Final = "`store: encrypted` needs a folder of keys, and this gate has none: nothing is decided until it has"

Place = tuple[ThreadId, RunId]
P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger("gated.erasing")


class Subjects:
    """The keys of subjects in one serialiser. `vault` is for decisions, `reading` for what is done with them afterwards."""

    def __init__(self, keyring: Keyring | None, vault: Vault) -> None:
        self._keyring = keyring
        self._at_hand = KeysAtHand() if keyring is None else keyring.at_hand
        self.vault = vault.with_keys(self._at_hand)
        self.reading = vault if keyring is None else vault.with_keys(keyring)

    def keyed_at_once(self, decide: Callable[P, T], *args: P.args, **more: P.kwargs) -> T | None:
        """Decide with the keys that are at hand; None where that does not do, or a key was erased meanwhile."""
        used = self._at_hand.used
        used.clear()
        try:
            made = decide(*args, **more)
        except Unkeyed:
            return None
        return made if not used or self._is_current() else None

    def _is_current(self) -> bool:
        return self._keyring is None or self._keyring.is_current()

    async def keyed(self, decide: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Decide, with every key at hand that it asks for, and none that was erased meanwhile. Raises `LogUnavailable`."""
        while True:
            self._at_hand.used.clear()
            try:
                made = decide(*args, **more)
            except Unkeyed as missing:
                if self._keyring is None:
                    raise LogUnavailable(NO_FOLDER) from missing
                self._keyring.supply(missing.holder, make=missing.to_seal)
                await anyio.lowlevel.checkpoint()
                continue
            if not self._at_hand.used or self._is_current():
                return made

    async def erased(self, registry: Registry, run: RunState | None, asked: ErasureRequested) -> ErasureRequested:
        """Erase the subject's key; what was asked, with the keys that are gone. Raises `LogUnavailable`."""
        if self._keyring is None:
            return asked
        policy = registry.current if run is None else registry.known[run.policy]
        subject = policy.redactor.text(asked.subject, self.vault)
        wish = Erasure(subject, asked.by, (), asked.reason)
        try:
            keys = await anyio.to_thread.run_sync(self._keyring.erase, self.vault.holder(subject), wish)
        except OSError as error:
            raise LogUnavailable(f"a key cannot be erased: {error.strerror or error}") from error
        log.info("the key of a subject was erased", by=str(asked.by), keys=len(keys))
        return replace(asked, keys=keys)

    async def untold(self, event_log: ReadableLog, look: Callable[[ThreadId], Awaitable[ThreadState]]) -> list[Said]:
        """What a crash kept from being recorded: said again, as an input of the gate's own."""
        found: list[Said] = []
        if self._keyring is None:
            return found
        for holder, note in await anyio.to_thread.run_sync(self._keyring.untold):
            missing = await unaware(event_log, note.subject, note.keys, look)
            asked = ErasureRequested(note.by, note.subject, reason=note.reason)
            found += [Said(*place, asked, time.time_ns() // 1000, 0, None, None) for place in missing]
            if not missing:
                self._keyring.told(holder)
        return found


async def places_of(event_log: ReadableLog, subject: str, after: int = 0) -> list[Place]:
    """The runs that hold data of a subject, in the order of the log; those of archived threads first."""
    found: dict[Place, None] = {}
    for thread, state in (await archived_states(event_log)).items():
        found.update(dict.fromkeys((thread, run_id) for run_id in state.runs if _holds(state, run_id, subject)))
    mark = b'"subject":' + encode(subject)
    async for _, stored in event_log.read_all(after):
        if mark in stored.body and _is_of(stored, subject):
            found[(stored.thread, stored.run)] = None
    return list(found)


def _is_of(stored: Record, subject: str) -> bool:
    """Whether a record is of the subject; one that cannot be read and names it may be."""
    try:
        return unseal(stored).subject == subject
    except UnsealError:
        return True


def _holds(state: ThreadState, run_id: RunId, subject: str) -> bool:
    """Whether what was said for a run was of the subject, by whatever `redact.subject` its policy has."""
    run = state.runs[run_id]
    kinds = ("thread", "run", *(f"label:{name}" for name in run.labels))
    return any(subject_of(kind, state.thread, run_id, run.labels) == subject for kind in kinds)


async def unaware(
    event_log: ReadableLog, subject: str, keys: tuple[str, ...], look: Callable[[ThreadId], Awaitable[ThreadState]]
) -> list[Place]:
    """The runs that hold data of a subject and do not say that these keys are gone; all those of a damaged thread."""
    found: list[Place] = []
    for thread, run_id in await places_of(event_log, subject):
        try:
            state = await look(thread)
        except ThreadDamaged:  # it does not say so, until it is mended
            found.append((thread, run_id))
            continue
        if not set(keys) <= set(state.erased.get(run_id, ())):
            found.append((thread, run_id))
    return found


class Erased(Struct, frozen=True):
    """What an erasure did: the ids of the keys that are gone, and in how many runs the log says so."""

    subject: str
    keys: tuple[str, ...]
    runs: int


async def erase(event_log: EventLog, keyring: Keyring, vault: Vault, subject: str, by: Sender, reason: str) -> Erased:
    """Erase a subject in a log that no daemon writes. Asked again it finishes what a crash left."""
    known = await policies_of(event_log)
    threads = Threads(event_log, next(iter(known.values())), vault.with_keys(keyring))
    holder = vault.holder(subject)
    keys = await anyio.to_thread.run_sync(keyring.erase, holder, Erasure(subject, by, (), reason))
    places = await unaware(event_log, subject, keys, threads.look) if keys else []
    for thread, run_id in places:
        state = await threads.look(thread)
        run = state.runs.get(run_id)
        policy = threads.registry.current if run is None else threads.registry.known[run.policy]
        registry = replace(threads.registry, current=policy)
        asked = ErasureRequested(by, subject, keys, reason)
        made, stored = record(registry, state, run_id, asked, time.time_ns() // 1000)
        if stored is not None:
            await event_log.append(thread, state.seq, [stored])
        threads.keep(made.state)
    if keys:
        await anyio.to_thread.run_sync(keyring.told, holder)
    return Erased(subject, keys, len(places))
