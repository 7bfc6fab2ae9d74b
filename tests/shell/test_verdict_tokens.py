"""Verdict tokens, through the real daemon to the tool that checks them."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gated import wire
from gated.client.tokens import TokenRefused, verify_token
from gated.events import Admission, CallDecided, CallId, RunId, Sender, ThreadId
from gated.shell.verdict_tokens import VerdictSigner
from shell.live import POLICY, agent, daemon_on, ears, intents, server, tell, write_policy

ARGS = {"to": "kim", "login": "password=hunter22"}  # redacted in the log, so its digest there is a keyed one


def public_key(folder: Path) -> str:
    return (folder / "keys" / "verdict.key.pub").read_text()


async def test_the_token_of_an_allowed_call_is_good_for_it_and_for_nothing_else(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path, sign_verdicts=True):
            await tell(worker, agent("worker"), "r1", intents(("c1", "send", ARGS), ("c2", "shell", {})))
            allowed, denied = await heard.count(2)
        async with daemon_on(bus, tmp_path, sign_verdicts=True):
            await tell(worker, agent("worker"), "r1", intents(("c1", "send", ARGS)))
            again = (await heard.count(3))[2]
    assert isinstance(allowed, wire.Verdict)
    assert isinstance(denied, wire.Verdict)
    assert isinstance(again, wire.Verdict)
    assert (denied.decision, denied.token) == ("deny", None)
    assert allowed.token is not None
    assert again.token == allowed.token
    grant = verify_token(allowed.token, public_key(tmp_path), "send", ARGS)
    assert (grant.id, grant.agent) == ("r1/r1/c1", "worker")
    for tool, args in (("send", {**ARGS, "to": "eve"}), ("shell", ARGS), ("send", {})):
        with pytest.raises(TokenRefused):
            verify_token(allowed.token, public_key(tmp_path), tool, args)


@pytest.mark.parametrize("edit", [None, {"to": "lee", "login": "password=hunter22"}])
async def test_an_approved_call_has_a_token_for_what_was_approved(tmp_path: Path, edit: dict[str, Any] | None) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, bus.user("approver", "ana") as ana:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, tmp_path, sign_verdicts=True):
            await tell(payer, agent("payer"), "r1", intents(("c1", "refund", ARGS)))
            suspended = (await heard.count(1))[0]
            assert isinstance(suspended, wire.Verdict)
            assert suspended.token is None
            answer = {
                "type": "resolution",
                "ticket": suspended.ticket,
                "decision": "approve",
                "decision_id": "d1",
                "args_sha256": suspended.args_sha256,
                **({} if edit is None else {"args": edit}),
            }
            await tell(ana, Sender("approver", "ana"), "r1", json.dumps(answer).encode())
            verdict = (await heard.count(2))[1]
    assert isinstance(verdict, wire.Verdict)
    assert verify_token(verdict.token, public_key(tmp_path), "refund", edit or ARGS).agent == "payer"
    if edit is not None:
        with pytest.raises(TokenRefused, match="other arguments"):
            verify_token(verdict.token, public_key(tmp_path), "refund", ARGS)


async def test_a_gate_that_was_not_told_to_sign_signs_nothing(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            await tell(worker, agent("worker"), "r1", intents(("c1", "send", {})))
            verdict = (await heard.count(1))[0]
    assert isinstance(verdict, wire.Verdict)
    assert verdict.token is None
    assert not (tmp_path / "keys" / "verdict.key").exists()


def test_a_token_ends_with_its_call_and_a_stranger_makes_none() -> None:
    signer, stranger = (VerdictSigner(Ed25519PrivateKey.generate()) for _ in range(2))
    admission = Admission(reserved_microusd=0, due=2_000_000)
    decided = CallDecided(call=CallId("c1"), tool="t", args_sha256="", decision="allow", admission=admission)
    run = ThreadId("r1"), RunId("r1")
    late = signer.token(decided, {}, 1_000_000, "a", run)
    with pytest.raises(TokenRefused, match="expired"):
        verify_token(late, signer.public, "t", {})
    with pytest.raises(TokenRefused, match=r"(?i)signature"):
        verify_token(stranger.token(decided, {}, 1_000_000, "a", run), signer.public, "t", {})
    for nothing in (None, "", "a.b.c"):
        with pytest.raises(TokenRefused):
            verify_token(nothing, signer.public, "t", {})
