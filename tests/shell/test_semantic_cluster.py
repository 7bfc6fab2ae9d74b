"""The semantic stage in a cluster: what one worker saw the next one knows, and a judge is asked by whoever has the thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio

from gated import wire
from gated.client import Verdict
from patience import PATIENCE
from shell.live import agent, ears, intents, server, tell, write_policy
from shell.test_semantic import LETTER, POLICY, judging
from shell.test_worker import decided, working


async def test_what_one_worker_saw_does_not_leave_by_another(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "mailer") as client:
        heard = await ears(client, "mailer")
        async with working(bus, tmp_path, "w1"):
            await tell(client, agent("mailer"), "r", intents(("i", "read_inbox", {})))
            await heard.count(1)
            await tell(client, agent("mailer"), "r", wire.Outcome(call="i", status="success", content=LETTER))
            await heard.count(2)
        async with working(bus, tmp_path, "w2"):
            await tell(client, agent("mailer"), "r", intents(("x", "post", {"b": LETTER[::-1]}), ("y", "post", {"b": "bye"})))
            answers = (await heard.count(4))[2:]
        made = await decided(bus)
    assert [(a.decision, a.code) for a in answers if isinstance(a, Verdict)] == [
        ("deny", "semantic.exfiltration"),
        ("allow", None),
    ]
    assert {call: len(each) for call, each in made.items()} == {"i": 1, "x": 1, "y": 1}


async def test_a_thread_that_is_handed_over_while_its_judge_thinks_is_decided_once(tmp_path: Path) -> None:
    asked = anyio.Event()

    async def slow(question: dict[str, Any]) -> bytes:
        asked.set()
        await anyio.sleep(0.7)
        return b'{"score": 0.1}'

    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as client:
        heard = await ears(client, "payer")
        async with judging(bus, slow), working(bus, tmp_path, "w2"):
            async with working(bus, tmp_path, "w1"):
                for number in range(8):
                    await tell(client, agent("payer"), f"t{number}", intents((f"c{number}", "refund", {})), f"m{number}")
                with anyio.fail_after(PATIENCE):
                    await asked.wait()
            answers = await heard.count(8)
        made = await decided(bus)
    assert {a.decision for a in answers if isinstance(a, Verdict)} == {"allow"}
    assert {call: len(each) for call, each in made.items()} == {f"c{number}": 1 for number in range(8)}
