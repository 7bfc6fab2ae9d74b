"""Deadlines of a cluster, which are schedules of its server: each approval ends once, whatever happens around its time."""

from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from gated import wire
from gated.client import Verdict
from gated.events import CallDecided, RunId, Sender, ThreadId
from gated.shell.log.jetstream import open_for_reading
from gated.shell.log.jetstream_messages import Messages
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.log.jetstream_time import microseconds, time_of
from patience import until
from ports import own_port
from shell.cluster_load import bodies
from shell.live import POLICY, Bus, Ears, agent, ears, intents, server, tell, write_policy
from shell.test_worker import working

TIMEOUT = 3  # seconds
SOON = POLICY.replace("timeout: 15m", f"timeout: {TIMEOUT}s")
EXPIRED = "approvals.expired"


def ended(heard: Ears) -> list[Verdict]:
    return [said for _, said in heard.heard if isinstance(said, Verdict) and said.decision != "suspend"]


async def verdict_on(heard: Ears, call: str) -> Verdict:
    """The first verdict on a call."""

    def found() -> list[Verdict]:
        return [said for _, said in heard.heard if isinstance(said, Verdict) and said.call == call]

    await heard.until(lambda: bool(found()))
    return found()[0]


async def all_expired(log: JetStreamReader, count: int) -> bool:
    return sum([EXPIRED.encode() in record.body async for _, record in log.read_all()]) >= count


async def ends(bus: Bus) -> dict[str, list[str | None]]:
    """What each call that waited for people came to, by its code; none expired before its time."""
    asked: dict[str, int] = {}
    found: dict[str, list[str | None]] = defaultdict(list)
    for body in await bodies(bus):
        for decision in body.decisions:
            if isinstance(decision, CallDecided) and decision.decision == "suspend":
                asked[decision.call] = body.at
            elif isinstance(decision, CallDecided):
                found[decision.call].append(decision.code)
                assert decision.code != EXPIRED or body.at >= asked[decision.call] + TIMEOUT * 1_000_000
    assert asked.keys() == found.keys()
    return found


async def test_approvals_end_once_where_the_server_is_killed_around_their_time(tmp_path: Path) -> None:
    write_policy(tmp_path, SOON)
    port = own_port()
    async with AsyncExitStack() as stack:
        running, bus = await stack.enter_async_context(server(tmp_path, port))
        async with bus.user("agent", "payer") as payer, working(bus, tmp_path, "w1", 4):
            heard = await ears(payer, "payer")
            for number in range(60):
                await tell(payer, agent("payer"), f"r{number}", intents((f"c{number}", "refund", {"amount": 5})))
                await anyio.sleep(0.02)  # so that some are due before the server is killed, some while it is away
            await heard.count(60)
            await anyio.sleep(1.8)
            running.process.kill()
            await stack.aclose()
            await stack.enter_async_context(server(tmp_path, port))
            async with bus.user("daemon") as client:  # the agent may not be back yet, and hear nothing
                log = await open_for_reading(client)
                await until(lambda: all_expired(log, 60))
                await log.close()
        assert await ends(bus) == {f"c{number}": [EXPIRED] for number in range(60)}


async def test_a_deadline_that_is_changed_many_times_comes_once(tmp_path: Path) -> None:
    write_policy(tmp_path, SOON)
    async with (
        server(tmp_path) as (_, bus),
        bus.user("agent", "payer") as payer,
        bus.user("approver", "bob") as bob,
        working(bus, tmp_path, "w1", 4),
    ):
        heard = await ears(payer, "payer")
        for number in range(40):
            await tell(payer, agent("payer"), "r", intents((f"c{number}", "refund", {"amount": number})))
            asked = await verdict_on(heard, f"c{number}")
            if number % 4:
                answer = wire.Resolution(
                    ticket=str(asked.ticket), decision="reject", decision_id=f"d{number}", args_sha256=asked.args_sha256, note=""
                )
                await tell(bob, Sender("approver", "bob"), "r", answer)
        await heard.until(lambda: len(ended(heard)) >= 40)
        found = await ends(bus)
    assert found == {f"c{number}": ["approvals.rejected" if number % 4 else EXPIRED] for number in range(40)}


async def test_an_alarm_for_nothing_changes_nothing(tmp_path: Path) -> None:
    """As a worker leaves it that dies between a schedule and the record that needs it."""
    write_policy(tmp_path, SOON)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, working(bus, tmp_path, "w1", 4) as one:
        heard = await ears(payer, "payer")
        await tell(payer, agent("payer"), "known", intents(("c", "refund", {"amount": 5})))
        await heard.count(1)
        place = one.place
        now = await time_of(place.api, place.names.inputs)
        messages = Messages(place.api, place.names, place.shape.partitions, place.shape.secret)
        dues = [("known", "known", now), ("known", "other", now), ("never", "never", now)]  # the first in place of its own
        await place.api.store_each([messages.of_deadline((ThreadId(t), RunId(r), due)) for t, r, due in dues])
        await heard.until(lambda: len(ended(heard)) == 1)
        found = await bodies(bus)
        assert await ends(bus) == {"c": [EXPIRED]}
    assert {(body.thread, body.run) for body in found} == {("known", "known")}


@pytest.mark.parametrize(
    ("stamp", "at"),
    [
        ("2026-11-30T23:46:17.770873703Z", 1796082377770873),
        ("2026-11-30T23:46:17.0001Z", 1796082377000100),
        ("2026-11-30T23:46:17Z", 1796082377000000),
    ],
)
def test_times_of_the_server_are_read_to_the_microsecond(stamp: str, at: int) -> None:
    assert microseconds(stamp) == at
