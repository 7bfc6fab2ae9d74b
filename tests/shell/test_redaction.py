"""Redaction through the real daemon: nothing of a secret on disk or in what people and auditors hear, all of it for the agent."""

import json
import stat
from pathlib import Path

import pytest

from gated import wire
from gated.events import Sender
from gated.shell.keys import KeyFileError, load_or_make_vault
from shell.live import POLICY, agent, daemon_on, decided, ears, intents, overhear, server, tell, write_policy

SECRET = "hunter22"
ARGS = {"to": "kim", "login": f"password={SECRET}"}


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("log.db*"))


async def test_an_edit_of_a_redacted_call_reaches_the_agent_whole_also_after_a_restart(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, bus.user("approver", "ana") as ana:
        heard = await ears(payer, "payer")
        async with bus.user("auditor", "local") as auditor:
            async with daemon_on(bus, tmp_path):
                notices, records = await overhear(ana, "gated.tickets.>"), await overhear(auditor, "gated.events.>")
                await tell(payer, agent("payer"), "r1", intents(("c1", "refund", ARGS)))
                suspended = (await heard.count(1))[0]
                assert isinstance(suspended, wire.Verdict)
                assert suspended.decision == "suspend"
            async with daemon_on(bus, tmp_path):
                shown = notices[0]["details"]["calls"][0]
                assert shown["args"]["login"]["redacted"] == "secrets"
                assert "sealed" not in shown
                answer = {
                    "type": "resolution",
                    "ticket": suspended.ticket,
                    "decision": "approve",
                    "decision_id": "d1",
                    "args_sha256": suspended.args_sha256,
                    "args": {**shown["args"], "to": "lee"},
                }
                await tell(ana, Sender("approver", "ana"), "r1", json.dumps(answer).encode())
                verdict = (await heard.count(2))[1]
                await tell(payer, agent("payer"), "r1", intents(("c1", "refund", ARGS)))
                again = (await heard.count(3))[2]
    assert isinstance(verdict, wire.Verdict)
    assert isinstance(again, wire.Verdict)
    assert (verdict.decision, verdict.args) == ("allow", {**ARGS, "to": "lee"})
    assert (again.replayed, again.args) == (True, verdict.args)
    assert SECRET not in json.dumps([notices, records])
    assert SECRET.encode() not in on_disk(tmp_path)
    assert len(await decided(tmp_path / "log.db")) == 1


async def test_an_allowed_call_of_an_agent_is_not_on_disk(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path), bus.agent("worker") as worker:
        run = worker.run(run="r1")
        assert (await run.check("connect", {"password": SECRET})).decision == "allow"
    assert SECRET.encode() not in on_disk(tmp_path)


def test_a_vault_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "redaction.key"
    made, again = load_or_make_vault(path), load_or_make_vault(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.digest("x") == again.digest("x")
    assert again.open(made.seal({"a": 1})) == {"a": 1}
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_or_make_vault(path)


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "00" * 31, "\xff"])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "redaction.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="32 bytes in hex"):
        load_or_make_vault(path)
