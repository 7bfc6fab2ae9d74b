"""The console lives on while the bus and the gate are away, and misses nothing of what it shows."""

import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
from anyio.from_thread import start_blocking_portal

from console.world import CHEAP, POLICY, USERS, Visitor
from gated import wire
from gated.console.line import Passwords
from gated.console.people import People, Person
from gated.console.serve import Serving, running
from gated.events import Sender
from gated.shell.embedded import embedded_server
from gated.ticket_views import OpenTicket
from patience import PATIENCE, blocking_until
from ports import own_port
from shell.live import Bus, daemon_on, tell, write_policy


@asynccontextmanager
async def gate(folder: Path, port: int) -> AsyncIterator[Bus]:
    async with embedded_server(folder / "bus", USERS, port) as server:
        bus = Bus(server.bus.url, server.bus.users)
        async with daemon_on(bus, folder):
            yield bus


async def asked(bus: Bus, number: int) -> str:
    async with bus.agent("payer") as agent:
        opened = agent.run(task=f"task {number}", run=f"run{number}")
        await opened.__aenter__()
        verdict = await opened.check("refund", {"customer": "c", "amount": number})
        assert verdict.ticket is not None
        return verdict.ticket


async def rejected(bus: Bus, line: OpenTicket) -> None:
    async with bus.user("approver", "ana") as ana:
        said = wire.Resolution(ticket=line.ticket, decision="reject", decision_id="d", args_sha256=line.args_sha256)
        await tell(ana, Sender("approver", "ana"), line.run, said)
        await ana.flush()


def test_what_happened_while_the_line_was_lost_is_shown_when_it_is_back(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    people = People(tmp_path / "console" / "users.json")
    people.put(Person("ana", CHEAP, auditor=True))
    port = own_port()
    with start_blocking_portal() as portal, ExitStack() as stack:
        enter = portal.wrap_async_context_manager  # in a task of its own, so that either may outlive the other
        with enter(gate(tmp_path, port)) as bus:
            serving = Serving(people, Passwords(tmp_path / "bus" / "bus.json"), port=0)
            desk = stack.enter_context(enter(running(serving)))
            first = portal.call(asked, bus, 1)
            line = blocking_until(lambda: desk.board.find(first))
        with enter(gate(tmp_path, own_port())) as bus:  # on a port that the console does not know
            second = portal.call(asked, bus, 2)
            portal.call(rejected, bus, line)
            third = portal.call(asked, bus, 3)
        assert desk.board.find(first)
        with httpx.Client(base_url=desk.settings.origin, headers={"accept": "text/html"}, timeout=PATIENCE) as http:
            visitor = Visitor(http)
            assert visitor.log_in("ana").status_code == 303
            assert visitor.get("/").status_code == 200
            with enter(gate(tmp_path, port)):
                blocking_until(lambda: desk.board.find(second) and desk.board.find(third) and not desk.board.find(first))
                blocking_until(lambda: "task 2" in visitor.get("/runs").text)
                (ended,) = portal.call(desk.past.ended, Person("ana", auditor=True), 9, [first])
                assert ended.state == "rejected"
                page = visitor.answer(f"/tickets/run2/run2/{second}", "approve").text
                assert "Approved." in page
                assert "out of reach" not in page


def test_a_line_that_the_server_refuses_is_opened_anew(tmp_path: Path) -> None:
    """Found by reading: with new passwords on the bus the console heard nothing any more, until it was started again."""
    write_policy(tmp_path, POLICY)
    port = own_port()
    with start_blocking_portal() as portal, ExitStack() as stack:
        enter = portal.wrap_async_context_manager
        with enter(gate(tmp_path, port)):
            serving = Serving(People(tmp_path / "users.json"), Passwords(tmp_path / "bus" / "bus.json"), port=0)
            desk = stack.enter_context(enter(running(serving)))
            blocking_until(lambda: desk.board.ready)
        shutil.rmtree(tmp_path / "bus")  # its users are made anew, with other passwords
        with enter(gate(tmp_path, port)) as bus:
            first = portal.call(asked, bus, 1)
            line = blocking_until(lambda: desk.board.find(first))
            second = portal.call(asked, bus, 2)
            portal.call(rejected, bus, line)
            blocking_until(lambda: desk.board.find(second) and not desk.board.find(first))
            assert not desk.board.trouble
