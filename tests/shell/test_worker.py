"""Workers that share a cluster's log: who decides what, hand-over, failover, and what the log says afterwards."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gated import wire
from gated.client import Verdict
from gated.core.chain import verify_records
from gated.events import CallDecided, Sender
from gated.shell.custody import Copies, open_custody
from gated.shell.daemon import Settings
from gated.shell.log import jetstream_streams
from gated.shell.log.jsonl import open_export
from gated.shell.policies import read_policy
from gated.shell.worker import Worker, worker
from patience import PATIENCE, blocking_until, until
from shell.cluster_load import bodies
from shell.live import POLICY, Bus, Ears, agent, ears, intents, server, tell, write_policy


@asynccontextmanager
async def working(bus: Bus, folder: Path, name: str, partitions: int = 8) -> AsyncIterator[Worker]:
    path = folder / "policy.yaml"
    custody = open_custody(folder / "keys", Copies())
    settings = Settings(bus.url, path, bus.credentials("daemon"), custody=custody, partitions=partitions)
    async with worker(settings, read_policy(path), name) as made:
        yield made


async def decided(bus: Bus) -> dict[str, list[CallDecided]]:
    """The decisions of the cluster's log by call."""
    made: dict[str, list[CallDecided]] = {}
    for body in await bodies(bus):
        for decision in body.decisions:
            if isinstance(decision, CallDecided):
                made.setdefault(decision.call, []).append(decision)
    return made


async def ask(bus: Bus, heard: Ears, name: str, threads: list[str], call: str) -> list[Verdict]:
    before = len(heard.heard)
    async with bus.user("agent", name) as client:
        for thread in threads:
            await tell(client, agent(name), thread, intents((f"{thread}-{call}", "search", {"q": call})), f"{thread}-{call}")
    found = (await heard.count(before + len(threads)))[before:]
    return [verdict for verdict in found if isinstance(verdict, Verdict)]


THREADS = [f"t{n}" for n in range(24)]


async def test_one_worker_decides_everything(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one:
            verdicts = await ask(bus, heard, "worker", THREADS, "a")
            assert {verdict.decision for verdict in verdicts} == {"allow"}
            assert one.owned == list(range(8))
            again = await ask(bus, heard, "worker", THREADS, "b")
        assert len(again) == 24
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS for c in "ab"}


# --- several workers --------------------------------------------------------------------------------------------------


async def settled(*workers: Worker, partitions: int = 8) -> None:
    """Until the workers share the partitions out evenly, and none has what should be another's."""
    each = partitions // len(workers)
    await until(lambda: all(len(one._shares) == each and set(one.owned) <= one._shares for one in workers))


async def test_a_second_worker_takes_its_share_and_hands_it_back_when_it_stops(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1") as one:
            await ask(bus, heard, "worker", THREADS, "a")
            assert len(one.owned) == 8
            async with working(bus, tmp_path, "w2") as two:
                await settled(one, two)
                await ask(bus, heard, "worker", THREADS, "b")
                assert sorted(one.owned + two.owned) == list(range(8))
                assert len(one.owned) == len(two.owned) == 4
                assert 0 < two.view.health.records + sum(p.runs.health.records for p in two.partitions if p.runs) < 24
            await ask(bus, heard, "worker", THREADS, "c")
            assert len(one.owned) == 8
        made = await decided(bus)
    assert {call: [d.decision for d in each] for call, each in made.items()} == {
        f"{t}-{c}": ["allow"] for t in THREADS for c in "abc"
    }


async def test_every_worker_tells_that_the_policy_file_of_one_is_broken(tmp_path: Path) -> None:
    good, broken = write_policy(tmp_path / "w1").parent, write_policy(tmp_path / "w2").parent
    async with server(tmp_path) as (_, bus), bus.user("operator", "local") as operator, working(bus, good, "w1") as one:
        shutil.copytree(good / "keys", broken / "keys")
        async with working(bus, broken, "w2") as two:
            await settled(one, two)
            write_policy(broken, "version: 1\nagent: {}\n")
            assert await two.reload() is False
            await until(lambda: "policy.yaml:2:" in one.view.health.reload_failed)
            assert one.view.health.reload_failed.startswith("worker w2: ")
            assert (one.gauges().reload_failed, two.gauges().reload_failed) == (False, True)
            told = json.loads((await operator.request("gated.api.cluster.status", b"", timeout=PATIENCE)).data)
            assert ["policy.yaml:2:" in worker["reload_failed"] for worker in told["workers"]] == [False, True]
            write_policy(broken)
            await two.reload()
            await until(lambda: not one.view.health.reload_failed)


async def test_a_hand_over_waits_for_no_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_streams, "PIN_SECONDS", 4 * PATIENCE)  # nobody here could wait until a pin has run out
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w2") as two:
            async with working(bus, tmp_path, "w1") as one:
                await settled(one, two)
                await ask(bus, heard, "worker", THREADS, "a")
                assert one.owned
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(one.leave, "leaving")
                    for number in range(20):
                        await ask(bus, heard, "worker", THREADS[:8], f"n{number}")
                assert not one.owned
            assert len(two.owned) == 8
        made = await decided(bus)
    assert all(len(each) == 1 for each in made.values())


async def test_a_drained_worker_has_nothing_and_takes_its_share_again(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client, bus.user("operator", "local") as operator:
        heard = await ears(client, "worker")

        async def asked(verb: str, **question: object) -> dict[str, Any]:
            answer = await operator.request(f"gated.api.{verb}", json.dumps(question).encode(), timeout=PATIENCE)
            assert "Nats-Service-Error" not in (answer.headers or {}), answer.headers
            return dict(json.loads(answer.data))

        async with working(bus, tmp_path, "w1") as one, working(bus, tmp_path, "w2") as two:
            await settled(one, two)
            await ask(bus, heard, "worker", THREADS, "a")
            assert await asked("cluster.drain", worker="w1") == {"worker": "w1", "released": 4, "left": 0}
            await ask(bus, heard, "worker", THREADS, "b")
            status = await asked("cluster.status")
            assert [(beat["worker"], beat["state"]) for beat in status["workers"]] == [("w1", "draining"), ("w2", "working")]
            assert {p["leased_to"] for p in status["partitions"]} == {"w2"}
            assert status["lag"] == 0
            assert all(0 <= p["lease_age_s"] < 60 for p in status["partitions"])
            await asked("cluster.drain", worker="w1", undo=True)
            await settled(one, two)
            answer = await operator.request("gated.api.cluster.drain", b'{"worker": "w9"}', timeout=PATIENCE)
            assert answer.headers is not None
            assert answer.headers["Nats-Service-Error"] == "there is no worker `w9`: w1, w2 are there"


async def test_what_a_run_did_counts_wherever_it_goes_on(tmp_path: Path) -> None:
    """The default privacy barrier lets two mails out of a thread, whichever workers decide them."""
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "mailer") as client:
        heard = await ears(client, "mailer")

        async def mail(number: int) -> str:
            await tell(client, agent("mailer"), "r", intents((f"c{number}", "send_email", {"to": str(number)})))
            return next(m.decision for m in (await heard.count(number + 1)) if isinstance(m, Verdict) and m.call == f"c{number}")

        said = []
        for number in range(4):
            async with working(bus, tmp_path, f"w{number}"):
                said.append(await mail(number))
        await decided(bus)
    assert said == ["allow", "allow", "deny", "deny"]


async def test_an_approval_opened_at_one_worker_is_answered_at_another_and_expires_by_schedule(tmp_path: Path) -> None:
    soon = "15m}\n  rules: [{on: 'refund(amount = \"6\")', approvers: [group:leads], timeout: 2s}]"
    write_policy(tmp_path, POLICY.replace("15m}", soon))
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, bus.user("approver", "bob") as bob:
        heard = await ears(payer, "payer")
        async with working(bus, tmp_path, "w1"):
            for run, amount in (("yes", 5), ("never", 6)):
                await tell(payer, agent("payer"), run, intents((run, "refund", {"amount": amount})))
            first = await heard.count(2)
        async with working(bus, tmp_path, "w2"):
            ticket = next(v for v in first if isinstance(v, Verdict) and v.call == "yes")
            answer = wire.Resolution(
                ticket=str(ticket.ticket), decision="approve", decision_id="d", args_sha256=ticket.args_sha256, note=""
            )
            await tell(bob, Sender("approver", "bob"), "yes", answer)
            said = await heard.count(4)
            assert {(v.call, v.decision, v.code) for v in said if isinstance(v, Verdict) and v.decision != "suspend"} == {
                ("yes", "allow", None),
                ("never", "deny", "approvals.expired"),
            }
            tickets = await bob.request("gated.api.tickets.list", b"", timeout=PATIENCE)
            assert json.loads(tickets.data) == []
        made = await decided(bus)
    assert [d.decision for d in made["never"]] == ["suspend", "deny"]


async def test_open_tickets_are_listed_by_a_worker_that_came_later(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, bus.user("operator", "local") as operator:
        heard = await ears(payer, "payer")
        async with working(bus, tmp_path, "w1"):
            await tell(payer, agent("payer"), "r", intents(("c", "refund", {"amount": 5})))
            await heard.count(1)
        async with working(bus, tmp_path, "w2"):
            listed = json.loads((await operator.request("gated.api.tickets.list", b"", timeout=PATIENCE)).data)
            shown = json.loads(
                (await operator.request("gated.api.runs.show", b'{"thread": "r", "run": "r"}', timeout=PATIENCE)).data
            )
    assert [ticket["tool"] for ticket in listed] == ["refund"]
    assert shown["agent"] == "payer"


# --- workers that are killed, stopped, woken --------------------------------------------------------------------------


@contextmanager
def process(bus: Bus, folder: Path, name: str, *options: str, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """`gated serve --log nats:`, killed at the end where it still runs; `fault` kills it there (`GATED_FAULT`)."""
    command = [sys.executable, "-m", "gated", "serve", "--log", "nats:", "--policy", str(folder / "policy.yaml")]
    environment = {
        **os.environ,
        "GATED_FAULT": fault,
        "GATED_NATS_URL": bus.url,
        "GATED_NATS_USER": "daemon",
        "GATED_NATS_PASSWORD": bus.passwords["daemon"],
    }
    with (folder / f"{name}.out").open("ab") as out:
        running = subprocess.Popen(
            [*command, "--name", name, "--partitions", "8", "--keys", str(folder / "keys"), *options],
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait(PATIENCE)


def heard_of(folder: Path, name: str, text: str) -> None:
    """Wait until a worker's process has said something."""
    output = folder / f"{name}.out"
    blocking_until(lambda: text in output.read_text(), lambda: f"`{text}` in {output.read_text()}")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_worker_that_is_gone_is_replaced_in_seconds_and_never_decides_again(tmp_path: Path, how: signal.Signals) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        with process(bus, tmp_path, "w1") as one, process(bus, tmp_path, "w2"):
            for name in ("w1", "w2"):
                await anyio.to_thread.run_sync(heard_of, tmp_path, name, "gated works")
            await anyio.sleep(1.5)
            await ask(bus, heard, "worker", THREADS, "a")
            one.send_signal(how)
            await ask(bus, heard, "worker", THREADS, "b")
            if how == signal.SIGSTOP:
                one.send_signal(signal.SIGCONT)
            await ask(bus, heard, "worker", THREADS, "c")
            await anyio.sleep(1.0)
            await ask(bus, heard, "worker", THREADS, "d")
        made = await decided(bus)
    assert {call: [d.decision for d in each] for call, each in made.items()} == {
        f"{t}-{c}": ["allow"] for t in THREADS for c in "abcd"
    }


async def test_two_workers_by_one_command_stop_together(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        heard = await ears(client, "worker")
        with process(bus, tmp_path, "w", "--workers", "2") as both:
            for name in ("w-1", "w-2"):
                await anyio.to_thread.run_sync(heard_of, tmp_path, "w", f"worker {name}")
            assert len(await ask(bus, heard, "worker", THREADS, "a")) == 24
            both.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(both.wait, PATIENCE) == 0
        said = (tmp_path / "w.out").read_text()
        assert said.count("stopped") == 2
        assert "Traceback" not in said


async def test_a_cluster_that_cannot_start_says_why_once_and_ends(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\nagents: [no]\n")
    async with server(tmp_path) as (_, bus):
        with process(bus, tmp_path, "w", "--workers", "2") as both:
            assert await anyio.to_thread.run_sync(both.wait, PATIENCE) == 2
    assert "policy.yaml" in (tmp_path / "w.out").read_text()


async def test_a_worker_with_another_redaction_key_is_refused(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus):
        async with working(bus, tmp_path, "w1"):
            pass
        with process(bus, tmp_path, "w2", "--keys", str(tmp_path / "other")) as other:
            assert await anyio.to_thread.run_sync(other.wait, PATIENCE) == 2
    assert "give every worker the same folder of `--keys`" in " ".join((tmp_path / "w2.out").read_text().split())


# --- reading the cluster's log ----------------------------------------------------------------------------------------


async def test_people_read_the_clusters_log_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(tmp_path)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gated", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as client:
        for key, value in (("URL", bus.url), ("USER", "auditor:local"), ("PASSWORD", bus.passwords["auditor:local"])):
            monkeypatch.setenv(f"GATED_NATS_{key}", value)
        heard = await ears(client, "worker")
        async with working(bus, tmp_path, "w1"):
            await ask(bus, heard, "worker", THREADS, "a")
            texts = [
                await anyio.to_thread.run_sync(run, *arguments)
                for arguments in (
                    ("replay", "nats:"),
                    ("verify", "nats:"),
                    ("runs", "ls", "nats:", "--json"),
                    ("log", "export", bus.url, str(tmp_path / "out.jsonl")),
                )
            ]
            monkeypatch.setenv("GATED_NATS_USER", "operator:local")
            monkeypatch.setenv("GATED_NATS_PASSWORD", bus.passwords["operator:local"])
            status = await anyio.to_thread.run_sync(run, "cluster", "status")
    assert "the same: 24 records" in texts[0]
    assert "24 records in 24 threads" in texts[1]
    assert len(json.loads(texts[2])) == 24
    assert verify_records(enumerate([r async for _, r in open_export(tmp_path / "out.jsonl").read_all()], 1)).records == 24
    assert "w1" in status
    assert "8 partitions" in status
