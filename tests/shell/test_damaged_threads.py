"""A part of the log that is damaged takes the gate away from its own thread, and from no other."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from gated import client, wire
from gated.core.chain import Damage, verify_records
from gated.events import RunId, Sender, ThreadId
from gated.shell import timers
from gated.shell.damaged import DAMAGED
from gated.shell.log.sqlite import open_for_reading, open_for_writing
from gated.shell.open_runs import OpenRuns
from patience import PATIENCE, until
from shell.live import POLICY, Clock, agent, daemon_on, ears, intents, server, tell, write_policy

Harm = Callable[[sqlite3.Connection], object]
OF_SICK = "thread = 'sick' and seq = 2"


def edited(text: str) -> Harm:
    return lambda log: log.execute(f"update records set {text} where {OF_SICK}")


HARMS: dict[str, Harm] = {
    "a flipped bit, still JSON": edited("body = cast(replace(cast(body as text), 'search', 'seasch') as blob)"),
    "no JSON": edited("body = x'ff00'"),
    "an empty body": edited("body = x''"),
    "another hash": edited(f"hash = '{'0' * 64}'"),
    "another hash before it": edited(f"prev = '{'0' * 64}'"),
    "a record that is not there": lambda log: log.execute(f"delete from records where {OF_SICK}"),
    "a policy that is not there": lambda log: log.execute("delete from policies"),
}


def harm(path: Path, what: Harm) -> None:
    """A hand in the file, which takes the guards off first."""
    with closing(sqlite3.connect(path)) as log:
        for (name,) in log.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
            log.execute(f"drop trigger {name}")
        what(log)
        log.commit()


async def verified(path: Path) -> Damage | None:
    log = await open_for_reading(path)
    try:
        return verify_records([item async for item in log.read_all()]).damage
    finally:
        await log.close()


@pytest.mark.parametrize("what", HARMS)
async def test_a_damaged_thread_refuses_and_the_others_go_on(tmp_path: Path, what: str) -> None:
    """Found by a hand in the file: the daemon ended at the first input of that thread, and again at every start."""
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            for name in ("sick", "well"):
                for number in range(3):
                    await tell(worker, agent("worker"), name, intents((f"{name}{number}", "search", {"q": "a"})))
            await heard.count(6)
        if what == "a policy that is not there":
            write_policy(tmp_path, POLICY.replace("max_calls: 100000", "max_calls: 7"))
        harm(tmp_path / "log.db", HARMS[what])
        of_all = what == "a policy that is not there"  # the one fault here that is not of one thread
        heard.heard.clear()
        async with daemon_on(bus, tmp_path) as live, bus.user("operator", "local") as operator:
            await tell(worker, agent("worker"), "sick", intents(("a", "search", {"q": "a"}), ("b", "search", {"q": "a"})))
            await tell(worker, agent("worker"), "sick", wire.RunFinish())
            await tell(worker, agent("worker"), "fresh" if of_all else "well", intents(("well3", "search", {"q": "a"})))
            *refused, verdict = await heard.count(4)
            assert isinstance(verdict, wire.Verdict)
            assert (verdict.call, verdict.decision) == ("well3", "allow")
            assert [(r.code, r.call) for r in refused if isinstance(r, wire.Refusal)] == [
                (DAMAGED, "a"),
                (DAMAGED, "b"),
                (DAMAGED, None),
            ]
            async with bus.agent("worker") as gate:
                with pytest.raises(client.Refused, match=DAMAGED):
                    await gate.run(run="sick").__aenter__()
            health = msgspec.json.decode((await operator.request("gated.api.health", b"", timeout=PATIENCE)).data)
            assert health["ok"]
            assert set(health["damaged"]) == ({"sick", "well"} if of_all else {"sick"})
            assert "thread `sick` is damaged at record" in health["damaged"]["sick"]
            assert live.daemon.runs.health.records == 1
    assert (await verified(tmp_path / "log.db") is None) == of_all  # it says so still, where the records are concerned


async def test_people_learn_that_a_thread_is_damaged_and_see_the_tickets_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, bus.user("approver", "bob") as bob:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, tmp_path):
            for name in ("sick", "well"):
                await tell(payer, agent("payer"), name, intents((f"{name}1", "refund", {"amount": 5})))
                await tell(payer, agent("payer"), name, intents((f"{name}2", "refund", {"amount": 6})))
            asked = {said.call: said for said in await heard.count(4) if isinstance(said, wire.Verdict)}
        harm(tmp_path / "log.db", HARMS["no JSON"])
        clock = Clock(monkeypatch)
        async with daemon_on(bus, tmp_path) as live:
            await until(lambda: live.daemon.runs.open_tickets.complete)
            listed = msgspec.json.decode((await bob.request("gated.api.tickets.list", b"", timeout=PATIENCE)).data)
            assert {ticket["run"] for ticket in listed} == {"well"}
            page = msgspec.json.decode((await bob.request("gated.api.tickets.page", b"", timeout=PATIENCE)).data)
            assert {ticket["run"] for ticket in page["tickets"]} == {"well"}
            told = await bob.subscribe("gated.out.sick.sick.approver.bob")
            await bob.flush()
            of_sick = asked["sick1"]
            answer = wire.Resolution(
                ticket=str(of_sick.ticket), decision="approve", decision_id="d", args_sha256=of_sick.args_sha256
            )
            await tell(bob, Sender("approver", "bob"), "sick", answer)
            assert DAMAGED.encode() in (await told.next_msg(PATIENCE)).data
            heard.heard.clear()
            clock.forward(live, 3600)  # the timers of both threads run: one is heard of
            ended = await heard.count(2)
            assert {(said.call, said.code) for said in ended if isinstance(said, wire.Verdict)} == {
                ("well1", "approvals.expired"),
                ("well2", "approvals.expired"),
            }


@contextmanager
def harmed(path: Path) -> Iterator[None]:
    """A record is damaged while the block runs, and mended then."""
    with closing(sqlite3.connect(path)) as log:
        ((body,),) = log.execute(f"select body from records where {OF_SICK}").fetchall()
    harm(path, HARMS["no JSON"])
    try:
        yield
    finally:
        harm(path, lambda log: log.execute(f"update records set body = ? where {OF_SICK}", (body,)))


async def test_an_outcome_that_was_not_taken_is_said_to_be_and_taken_once_the_log_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(tmp_path)
    monkeypatch.setattr("gated.shell.threads.LOOK_AGAIN", 0.0)
    async with server(tmp_path) as (_, bus), bus.agent("worker") as gate:
        async with daemon_on(bus, tmp_path), gate.run(run="sick") as run:
            admitted = await run.admit("search", {"q": "a"})
            run.detach()
        with harmed(tmp_path / "log.db"):
            async with daemon_on(bus, tmp_path):
                with pytest.raises(client.Unreported, match="the outcome was not taken: report it again then") as lost:
                    await run.succeeded(admitted.call, "found")
                assert (lost.value.code, lost.value.result) == (DAMAGED, "found")
        async with daemon_on(bus, tmp_path) as live:
            await run.report(admitted.call, "success", content=lost.value.result)
            state = await live.daemon.runs.look(ThreadId("sick"))
            assert state.runs[RunId("sick")].step_count == 1


async def test_a_deadline_that_met_a_damaged_thread_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer was spent: after the log was mended nothing woke the run, and its tickets stayed open until a restart."""
    write_policy(tmp_path)
    monkeypatch.setattr("gated.shell.threads.LOOK_AGAIN", 0.0)
    clock = Clock(monkeypatch)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, tmp_path):
            for number in range(2):
                await tell(payer, agent("payer"), "sick", intents((f"c{number}", "refund", {"amount": number})))
            await heard.count(2)
        heard.heard.clear()
        with ExitStack() as damage:
            damage.enter_context(harmed(tmp_path / "log.db"))
            async with daemon_on(bus, tmp_path) as live:
                clock.forward(live, 3600)
                await until(lambda: list(live.daemon.runs.threads.damages) == ["sick"])
                await until(lambda: live.daemon.runs.health.waiting == 0)
                damage.close()
                clock.forward(live, timers.AGAIN / 1e6)
                ended = await heard.count(2)
                assert {said.code for said in ended if isinstance(said, wire.Verdict)} == {"approvals.expired"}


async def test_a_verdict_whose_record_is_damaged_is_not_repeated(tmp_path: Path) -> None:
    """Its thread is in memory and goes on: what was decided is known, only the words are not."""
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker, daemon_on(bus, tmp_path) as live:
        heard = await ears(worker, "worker")
        for number in range(3):
            await tell(worker, agent("worker"), "sick", intents((f"c{number}", "shell", {"cmd": "a"})))
        await heard.count(3)
        harm(live.log, edited("body = cast(replace(cast(body as text), 'deny', 'allow') as blob)"))
        await tell(worker, agent("worker"), "sick", intents(("c1", "shell", {"cmd": "a"})))
        await tell(worker, agent("worker"), "sick", intents(("c2", "shell", {"cmd": "a"})))
        again = (await heard.count(5))[3:]
        assert isinstance(again[0], wire.Refusal)
        assert (again[0].code, again[0].call) == (DAMAGED, "c1")
        assert isinstance(again[1], wire.Verdict)
        assert (again[1].decision, again[1].replayed) == ("deny", True)


async def test_what_reads_the_whole_log_passes_a_damaged_record(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker, bus.user("auditor", "local") as auditor:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            for name in ("sick", "well"):
                await tell(worker, agent("worker"), name, intents((f"{name}0", "search", {})))
                await tell(worker, agent("worker"), name, wire.RunFinish())
            await heard.count(4)
        harm(tmp_path / "log.db", HARMS["no JSON"])
        log = await open_for_writing(tmp_path / "log.db")
        assert (await OpenRuns.of(log, {}))._total == {"worker": 1}  # the end of the other is not to be read
        await log.close()
        async with daemon_on(bus, tmp_path):
            page = msgspec.json.decode((await auditor.request("gated.api.log.read", b"", timeout=PATIENCE)).data)
            assert [(r["body"]["thread"], r["body"]["seq"]) for r in page["records"]] == [("sick", 1), ("well", 1), ("well", 2)]
            assert len(page["damaged"]) == 1
            refused = await auditor.request("gated.api.log.thread", b'{"thread":"sick"}', timeout=PATIENCE)
            assert "damaged at record 2" in (refused.headers or {})["Nats-Service-Error"]
