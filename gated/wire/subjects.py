"""The subjects of the bus contract, the stream, and who speaks on them. Identity is a token of the subject."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from gated import ingress
from gated.events import RunId, Sender, ThreadId

PREFIX: Final = "gated"
STREAM: Final = "GATED_IN"
UNKNOWN: Final = "-"  # in place of a thread or a run whose id was refused
ROLES: Final = ("agent", "approver", "operator", "runner")
RE: Final = "Gated-Re"  # the `Nats-Msg-Id` of the message that is answered


class Origin(NamedTuple):
    """Who says something for which run: what the subject of an input means."""

    thread: ThreadId
    run: RunId
    sender: Sender


def in_subject(origin: Origin, prefix: str = PREFIX) -> str:
    return f"{prefix}.in.{origin.thread}.{origin.run}.{origin.sender.role}.{origin.sender.name}"


def out_subject(thread: ThreadId, run: RunId, agent: str, prefix: str = PREFIX) -> str:
    """Where an agent hears; without a thread and a run, what concerns neither."""
    return f"{prefix}.out.{thread or UNKNOWN}.{run or UNKNOWN}.agent.{agent}"


def reply_subject(thread: ThreadId, run: RunId, sender: Sender, prefix: str = PREFIX) -> str:
    """Where a person or a runner is told what became of its own message."""
    return f"{prefix}.out.{thread or UNKNOWN}.{run or UNKNOWN}.{sender.role}.{sender.name}"


def tickets_subject(thread: ThreadId, run: RunId, prefix: str = PREFIX) -> str:
    return f"{prefix}.tickets.{thread}.{run}"


def events_subject(thread: ThreadId, run: RunId, prefix: str = PREFIX) -> str:
    return f"{prefix}.events.{thread}.{run}"


KNOWN: Final = 4096  # subjects whose meaning is remembered: a run speaks on one


@lru_cache(maxsize=KNOWN)
def parse_in_subject(subject: str, prefix: str = PREFIX) -> Origin | None:
    """What an input's subject says, or None where it is not of the contract's form."""
    found = _parts(subject, prefix)
    if found is None or not ingress.is_id(found.thread) or not ingress.is_id(found.run):
        return None
    return found


def parse_bad_ids(subject: str, prefix: str = PREFIX) -> tuple[Origin, tuple[str, ...]] | None:
    """Who spoke on a subject that has all its tokens, and which of thread and run are no ids: those are empty in the origin."""
    found = _parts(subject, prefix)
    if found is None:
        return None
    thread, run = (token if ingress.is_id(token) else "" for token in found[:2])
    bad = tuple(token for token in found[:2] if not ingress.is_id(token))
    return Origin(ThreadId(thread), RunId(run), found.sender), bad


def _parts(subject: str, prefix: str) -> Origin | None:
    """The tokens of an input's subject. Thread and run may still be anything, the sender is known."""
    parts = subject.split(".")
    if len(parts) != 6 or parts[0] != prefix or parts[1] != "in":
        return None
    _, _, thread, run, role, name = parts
    if role not in ROLES or not ingress.is_id(name):
        return None
    return Origin(ThreadId(thread), RunId(run), Sender(role, name))  # type: ignore[arg-type]


@lru_cache(maxsize=KNOWN)
def parse_stored_subject(subject: str, prefix: str = PREFIX) -> Origin | None:
    """The same for an input as a stream of partitions stores it, with the partition before the thread."""
    parts = subject.split(".")
    return parse_in_subject(".".join(parts[:2] + parts[3:]), prefix) if len(parts) == 7 else None
