"""A person's desk: what is cancelled leaves the connection as it was, and whoever may not answer is told."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from gated.cli import desk as desks
from gated.cli.desk import Desk, DeskError, Whereabouts, sit_down
from shell.live import agent, ears, gate, intents, tell


def desk_of(folder: Path, bus: Any, by: str, login: str | None = None) -> Whereabouts:
    user = f"approver:{login or by}"
    password = folder / f"{login or by}.password"
    password.write_text(bus.passwords[user])
    return Whereabouts(by, Path("nowhere"), bus.url, user, password)


async def one_ticket(live: Any, desk: Desk) -> dict[str, Any]:
    async with live.bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        await tell(payer, agent("payer"), "r", intents(("c", "refund", {"amount": 1})))
        await heard.count(1)
    (line,) = await desk.tickets()
    return line


async def test_what_is_cancelled_leaves_the_desk_as_it_was(tmp_path: Path) -> None:
    async with gate(tmp_path) as live:
        for patience in (0.0, 0.005, 0.02):
            with anyio.move_on_after(patience):
                async with sit_down(desk_of(tmp_path, live.bus, "bob"), stay=True):
                    await anyio.sleep_forever()
        async with sit_down(desk_of(tmp_path, live.bus, "bob")) as desk:
            line = await one_ticket(live, desk)
            for patience in (0.0, 0.001, 0.002):
                with anyio.move_on_after(patience):
                    await desk.ask("tickets.page", after=0)
            with anyio.move_on_after(0.0005):
                await desk.resolve(line, "approve")
            assert not desk._answers
            said = await desk.resolve(line, "reject")
    assert said.get("state") == "rejected" or said.get("code") == "approvals.already_decided"


async def test_nobody_answers_in_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of one person and the name of another: the server does not let it through."""
    async with gate(tmp_path) as live, sit_down(desk_of(tmp_path, live.bus, "bob")) as bob:
        line = await one_ticket(live, bob)
        monkeypatch.setattr(desks, "ANSWER_SECONDS", 0.5)
        with pytest.raises(DeskError, match="may `ana` answer with these credentials"):
            async with sit_down(desk_of(tmp_path, live.bus, "ana", "bob")) as ana:
                await ana.resolve(line, "approve")
        assert await bob.tickets() == [line]
