"""Keys of subjects in a cluster: one folder, in which any worker's erasure is every worker's."""

import shutil
from pathlib import Path

import anyio
import pytest

from cli.test_cli import gated
from gated import wire
from patience import PATIENCE
from shell.live import POLICY, agent, ears, intents, server, tell, write_policy
from shell.test_worker import process, working

ENCRYPTED = POLICY.replace("version: 1\n", "version: 1\nredact: {store: encrypted}\n", 1)


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
                "--password",
                bus.passwords["operator:local"],
            )
            status, text, error = await anyio.to_thread.run_sync(lambda: run(*erasing))
            assert status == 0, text + error
            denied = (await heard.count(2))[1]
            shown = await anyio.to_thread.run_sync(lambda: run("log", "show", "nats:", "1", "--reveal"))
    assert isinstance(denied, wire.Verdict)
    assert denied.code == "approvals.cancelled"
    assert "hunter22" not in shown[1]
    assert not list((tmp_path / "keys" / "subjects").glob("*.key"))
