"""Runs that are counted in a ledger: rows as another worker finds them, and a session that opens and ends runs."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from gated.core.decide import record
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import AgentId, FinishRequested, Record, RunId, RunStarted, Sender, ThreadId
from gated.shell.ledger import Ledger, Ledgers, Row, Tally
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_names import partition_of
from gated.shell.places import Places
from gated.shell.policies import read_policy
from gated.shell.said import Said
from gated.shell.threads import Threads
from patience import PATIENCE
from shell.live import write_policy

WORKER, MAILER = AgentId("worker"), AgentId("mailer")


def ledger_of(log: JetStreamLog) -> Ledger:
    return Ledger(log, log.messages, WORKER)


def tally(partition: int, lease: int = 1) -> Tally:
    return Tally(partition, lambda: lease, lease)


async def held(log: JetStreamLog) -> list[int]:
    """The rows as another worker finds them."""
    return [row.held for _, row in sorted((await ledger_of(log).rows()).items())]


async def until_held(log: JetStreamLog, rows: list[bool]) -> None:
    with anyio.fail_after(PATIENCE):
        for _ in range(1000):
            if await held(log) == rows:
                return
            await anyio.sleep(0.02)
    pytest.fail(f"the rows are not {rows}")


class Session:
    """A partition's places, on the log that it writes; `open` and `end` make records that are not stored yet."""

    def __init__(self, log: JetStreamLog, tmp_path: Path) -> None:
        self.log, self.policy = log, read_policy(write_policy(tmp_path))
        self.threads = Threads(log, self.policy, Vault(b"v" * 32))
        self.partition = partition_of(ThreadId("t"), 4)
        self.places = Places(log, self.partition, Ledgers(log, log.messages), self.threads, ())
        self.states: dict[ThreadId, ThreadState] = {}

    def threads_here(self, count: int) -> list[ThreadId]:
        names = (ThreadId(f"t{number}") for number in range(1000))
        return [name for name in names if partition_of(name, 4) == self.partition][:count]

    def _do(self, thread: ThreadId, observation: RunStarted | FinishRequested, *, place: bool) -> Record:
        before = self.states.get(thread, ThreadState(thread))
        registry = Registry(self.policy, {self.policy.digest: self.policy})
        step, made = record(registry, before, RunId("r"), observation, before.at + 1, 1)
        assert made is not None
        self.states[thread] = step.state
        said = Said(thread, RunId("r"), observation, 1, 1, None, None, place=place)
        self.places.follow(before, step.state, said)
        return made

    def open(self, thread: ThreadId, agent: AgentId = WORKER, *, place: bool = False) -> Record:
        return self._do(thread, RunStarted(by=Sender("agent", agent), agent=agent), place=place)

    def end(self, thread: ThreadId, agent: AgentId = WORKER) -> Record:
        return self._do(thread, FinishRequested(Sender("agent", agent)), place=False)

    async def store(self, *records: Record) -> None:
        await self.log.append_many(list(records))
        self.places.stored(records)

    async def count(self) -> None:
        await self.places._patiently(self.places._count, [WORKER])

    async def row(self) -> Row:
        return (await ledger_of(self.log).rows())[self.partition]


async def nobodys(record: Record) -> None:
    raise AssertionError(record)


async def until_row(session: Session, holds: Callable[[Row], bool], *, asked: bool = True) -> None:
    """`asked`: it is written because somebody asks for it."""
    with anyio.fail_after(PATIENCE):
        while not holds(await session.row()):
            if asked:
                session.places.look_again()
            await anyio.sleep(0.02)
