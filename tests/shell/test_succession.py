"""A partition that goes from a worker that lives to the next: what is handed over, what of it is believed, and what is lost."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from gated.client import Verdict
from gated.core import state as states
from gated.core.state import ThreadState
from gated.events import ThreadId
from gated.shell import partition, worker
from gated.shell.log import jetstream_streams
from gated.shell.log.jetstream_names import partition_of
from gated.shell.passed_bus import PassedBus
from gated.shell.stand_by import StandBy
from gated.shell.succession import Heir, Legacy, Told, Wish
from gated.shell.threads import Threads
from gated.shell.worker import Worker
from patience import PATIENCE, until
from shell.live import agent, ears, intents, overhear, server, tell, write_policy
from shell.test_worker import THREADS, ask, decided, settled, working

NEVER = 10 * PATIENCE


@pytest.fixture(autouse=True)
def nothing_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pin nor the time of an input that nobody acknowledged: what is only waited for does not come."""
    monkeypatch.setattr(jetstream_streams, "PIN_SECONDS", NEVER)
    monkeypatch.setattr(jetstream_streams, "ACK_WAIT", NEVER)


def in_memory(worker_: Worker, numbers: Iterable[int]) -> dict[ThreadId, ThreadState]:
    runs = [worker_.partitions[number].runs for number in numbers]
    return {thread: state for one in runs if one is not None for thread, state in one.threads.states.items()}


async def test_the_next_owner_has_in_memory_what_the_last_one_had_and_rewinds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewound: list[int] = []
    reset = PassedBus._reset

    async def counted(self: PassedBus) -> None:
        rewound.append(self._upcoming)
        await reset(self)

    monkeypatch.setattr(PassedBus, "_reset", counted)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one:
            await ask(bus, heard, "worker", THREADS, "a")
            before, rewinds = in_memory(one, range(8)), len(rewound)
            assert before.keys() == set(THREADS)
            async with working(bus, tmp_path, "w2") as two:
                await settled(one, two)
                await until(lambda: len(two.owned) == 4)
                theirs = {thread for thread in before if partition_of(thread, 8) in two.owned}
                await until(lambda: in_memory(two, two.owned).keys() == theirs)
                assert theirs
                assert in_memory(two, two.owned) == {thread: before[thread] for thread in theirs}
                await ask(bus, heard, "worker", THREADS, "b")
            await ask(bus, heard, "worker", THREADS, "c")
            assert len(one.owned) == 8
        assert len(rewound) == rewinds
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS for c in "abc"}


@pytest.mark.parametrize("told", ["of before", "of another", "junk"])
async def test_of_what_an_owner_tells_only_what_the_log_says_too_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """The default privacy barrier lets two mails out of a thread; as the owner tells it, there was one, or none."""
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "mailer") as client:
        heard = await ears(client, "mailer")

        async def mail(number: int) -> str:
            await tell(client, agent("mailer"), "r", intents((f"c{number}", "send_email", {"to": str(number)})))
            return next(m.decision for m in (await heard.count(number + 1)) if isinstance(m, Verdict) and m.call == f"c{number}")

        async with working(bus, tmp_path, "w1") as one:
            said = [await mail(0)]
            (state,) = in_memory(one, one.owned).values()
            said.append(await mail(1))
            (after,) = in_memory(one, one.owned).values()
            other = msgspec.structs.replace(state, seq=after.seq)
            wrong = {"of before": states.dump(state), "of another": states.dump(other), "junk": b"{"}[told]
            monkeypatch.setattr(Threads, "newest", lambda self, size: [(0, wrong)] if self.states else [])
            adopted: list[ThreadId] = []
            monkeypatch.setattr(Threads, "adopt", lambda self, state, *_: adopted.append(state.thread))
            async with working(bus, tmp_path, "w2") as two:
                await settled(one, two)
                await one.leave("leaving")
                assert not one.owned
                said.append(await mail(2))
        await decided(bus)
    assert (said, adopted) == (["allow", "allow", "deny"], [])


async def test_an_input_that_was_sent_to_an_owner_that_takes_no_more_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server chose whom to send it to just before it heard that nobody listens there; no other input comes to show it."""

    async def unaware(self: PassedBus) -> None:
        await self.stop()
        self._finished = self._expected, self.client.stats["reconnects"]

    monkeypatch.setattr(PassedBus, "finish", unaware)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one, working(bus, tmp_path, "w2") as two:
            await settled(one, two)
            await ask(bus, heard, "worker", THREADS, "a")
            await until(lambda: len(one.owned) == len(two.owned) == 4)
            for number in one.owned:
                here = one.partitions[number].bus
                assert here is not None
                here._stopped = True
            mine = [thread for thread in THREADS if partition_of(thread, 8) in one.owned]
            for thread in mine:
                await tell(client, agent("worker"), thread, intents((f"{thread}-b", "search", {})))

            async def sent() -> bool:
                infos = await jetstream_streams.consumers(one.place.api, one.place.names, one.owned)
                return bool(sum(info["num_ack_pending"] for info in infos.values()) == len(mine))

            await until(sent)
            await one.leave("leaving")
            await heard.count(len(THREADS) + len(mine))
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items() if call.endswith("b")} == {f"{thread}-b": 1 for thread in mine}


async def test_a_partition_is_decided_on_until_the_next_owner_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, asked = anyio.Event(), StandBy._ask

    async def later(self: StandBy) -> None:
        await go_on.wait()
        await asked(self)

    monkeypatch.setattr(StandBy, "_ask", later)
    monkeypatch.setattr(partition, "HEED", NEVER)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one:
            await ask(bus, heard, "worker", THREADS, "a")
            async with working(bus, tmp_path, "w2") as two:
                await until(lambda: len(two._shares) == len(one._shares) == 4)
                await ask(bus, heard, "worker", THREADS, "b")
                assert (len(one.owned), two.owned) == (8, [])
                go_on.set()
                await settled(one, two)
                await until(lambda: len(two.owned) == 4)
                await ask(bus, heard, "worker", THREADS, "c")
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS for c in "abc"}


async def test_where_the_next_owner_does_not_ask_the_server_gives_the_partition_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of another version, or one that heard nothing."""
    monkeypatch.setattr(Worker, "has_owner", lambda self, number: False)
    monkeypatch.setattr(partition, "HEED", 0.1)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one, working(bus, tmp_path, "w2") as two:
            await settled(one, two)
            await ask(bus, heard, "worker", THREADS, "a")
            await one.leave("leaving")
            await ask(bus, heard, "worker", THREADS, "b")
            assert (one.owned, len(two.owned)) == ([], 8)
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS for c in "ab"}


async def test_workers_that_stop_together_wait_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "HEED", NEVER)
    monkeypatch.setattr(worker, "LEAVE_SECONDS", NEVER)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one, working(bus, tmp_path, "w2") as two:
            await settled(one, two)
            await ask(bus, heard, "worker", THREADS, "a")
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(one.leave, "leaving")
                    tasks.start_soon(two.leave, "leaving")
            assert one.owned == two.owned == []


async def test_who_asks_for_what_its_owner_keeps_or_says_what_is_no_wish_gets_nothing(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client, bus.user("daemon") as other:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one:
            await ask(bus, heard, "worker", THREADS, "a")
            inbox = other.new_inbox()
            got = await overhear(other, inbox)
            wishes: list[Any] = [Wish("w9", number) for number in (*range(8), 99)]
            for said in (b"", b'{"stream": "GATED_IN", "seq": 7}', b'{"worker": "w9", "partition": -1}'):
                await other.publish("gated.cluster.wish", said, reply=inbox)
            for wish in wishes:
                await other.publish("gated.cluster.wish", msgspec.json.encode(wish), reply=inbox)
                await other.publish("gated.cluster.wish", msgspec.json.encode(wish))
            await ask(bus, heard, "worker", THREADS, "b")
            assert (one.owned, got) == (list(range(8)), [])


async def test_a_wish_that_is_old_gives_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever said it need not listen any more."""
    heir = Heir()
    heir.note("there")
    assert heir.reply == "there"
    now = anyio.current_time()
    monkeypatch.setattr(anyio, "current_time", lambda: now + 1.0)
    assert heir.reply == ""


def test_what_is_left_is_read_as_it_was_written() -> None:
    left = Legacy("pin", 7, 3, (Told(1, b"\x00state"),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(left), type=Legacy) == left
