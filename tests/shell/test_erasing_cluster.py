"""Keys of subjects in a cluster: one folder, in which any worker's erasure is every worker's."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from cli.command import gated
from gated import wire
from gated.events import DataErased, Sender, unseal
from gated.shell import erasing
from gated.shell.custody import Copies, open_custody
from gated.shell.keyring import Erasure
from gated.shell.log import jetstream
from patience import PATIENCE, until
from shell.cluster_load import bodies
from shell.live import POLICY, Bus, agent, ears, intents, server, tell, write_policy
from shell.test_worker import process, working

ENCRYPTED = POLICY.replace("version: 1\n", "version: 1\nredact: {store: encrypted}\n", 1)


async def all_erased(bus: Bus) -> bool:
    """Whether each of the runs says that its key is gone, once."""
    async with bus.user("daemon") as client:
        log = await jetstream.open_for_reading(client)
        told = [
            (record.run, decision.keys)
            async for _, record in log.read_all()
            for decision in unseal(record).decisions
            if isinstance(decision, DataErased)
        ]
        await log.close()
    assert len(told) == len(set(told))
    return {run for run, _ in told} == {"r1", "r2", "r3"}


async def test_workers_that_do_not_share_their_keys_of_subjects_are_refused(tmp_path: Path) -> None:
    write_policy(tmp_path, ENCRYPTED)
    async with server(tmp_path) as (_, bus):
        async with working(bus, tmp_path, "w1"):
            pass
        copied = tmp_path / "copied"
        copied.mkdir()
        shutil.copy(tmp_path / "keys" / "redaction.key", copied)
        with process(bus, tmp_path, "w2", "--keys", str(copied)) as other:
            assert await anyio.to_thread.run_sync(other.wait, PATIENCE) == 2
    assert "share one folder of `--keys`" in " ".join((tmp_path / "w2.out").read_text().split())


async def test_an_operator_erases_in_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(tmp_path, ENCRYPTED)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer:
        async with working(bus, tmp_path, "w1"), working(bus, tmp_path, "w2"):
            heard = await ears(payer, "payer")
            await tell(payer, agent("payer"), "r1", intents(("c1", "refund", {"login": "password=hunter22"})))
            assert (await heard.count(1))[0]
            monkeypatch.setenv("GATED_NATS_USER", "auditor:local")
            monkeypatch.setenv("GATED_NATS_PASSWORD", bus.passwords["auditor:local"])
            monkeypatch.setenv("GATED_NATS_URL", bus.url)

            def run(*arguments: str) -> tuple[int, str, str]:
                return gated(*arguments, "--keys", str(tmp_path / "keys"))

            erasing = (
                "log",
                "erase",
                "nats:",
                "--thread",
                "r1",
                "--yes",
                "--json",
                "--password-file",
                str(tmp_path / "operator"),
            )
            (tmp_path / "operator").write_text(bus.passwords["operator:local"])
            status, text, error = await anyio.to_thread.run_sync(lambda: run(*erasing))
            assert status == 0, text + error
            denied = (await heard.count(2))[1]
            shown = await anyio.to_thread.run_sync(lambda: run("log", "show", "nats:", "1", "--reveal"))
    assert isinstance(denied, wire.Verdict)
    assert denied.code == "approvals.cancelled"
    assert "hunter22" not in shown[1]
    assert not list((tmp_path / "keys" / "subjects").glob("*.key"))


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])
async def test_an_erasure_that_was_not_told_everywhere_is_finished_by_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """As a command leaves it that ends between two runs, or a worker that dies with the key destroyed.

    With a worker's clock `ahead` the record had its time; everything after it on its thread was later than that, and answers too
    late. With one behind nothing was seen, since a thread's time never goes back.
    """
    monkeypatch.setattr(erasing, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + int(ahead * 1e9)))
    write_policy(tmp_path, ENCRYPTED.replace("store: encrypted", "store: encrypted, subject: 'label:customer'", 1))
    started = wire.RunStart(labels={"customer": "42"})
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer:
        async with working(bus, tmp_path, "w1"):
            heard = await ears(payer, "payer")
            for run in ("r1", "r2", "r3"):
                await tell(payer, agent("payer"), run, started)
                await tell(payer, agent("payer"), run, intents(("c1", "refund", {"login": "password=hunter22"})))
            await heard.count(6)
        custody = open_custody(tmp_path / "keys", Copies())
        subject, by = "label:customer=42", Sender("operator", "local")
        keys = custody.keyring.erase(custody.vault.holder(subject), Erasure(subject, by, (), "asked by letter"))
        assert keys
        async with working(bus, tmp_path, "w2"), working(bus, tmp_path, "w3"):
            await until(lambda: all_erased(bus))
            await until(lambda: not custody.keyring.untold())
        assert max(body.at for body in await bodies(bus)) <= time.time_ns() // 1000
