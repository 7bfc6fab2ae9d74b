"""A gate and its console in a thread of their own, with agents to ask, for tests that look at it from outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from argon2 import PasswordHasher

from gated import client
from gated.client import Verdict
from gated.console.desk import Desk
from gated.console.line import Passwords
from gated.console.oidc import Oidc
from gated.console.people import People, Person
from gated.console.serve import Serving, running
from gated.shell.embedded import embedded_server
from gated.shell.nats_config import UserRole
from patience import PATIENCE, blocking_until
from shell.live import Bus, Clock, Live, daemon_on, write_policy

PASSWORD = "correct horse battery"
CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)  # a hash says how dear it is
SETUP = "setup-token-of-the-tests"
USERS: list[tuple[UserRole, str]] = [
    *[("agent", name) for name in ("payer", "writer", "spender")],
    *[("approver", name) for name in ("ana", "bob", "cy", "eve")],
    ("auditor", "local"),
    ("console", ""),
]

POLICY = """
version: 1
agents:
  payer:
    owner: cy
    checks: [privilege, order, contracts, dcbf]
    allowed_tools: [refund, note, look, quick, ask_human]
    approval_required: [refund, quick, ask_human]
    data_scope: any
    dcbf: {privacy: {budget: 1.0, per_call: 0.2}}
  writer:
    checks: [privilege]
    allowed_tools: [deploy, wire]
    approval_required: [deploy, wire]
    data_scope: any
  spender:
    checks: [privilege]
    allowed_tools: [buy]
    approval_required: [buy]
    resource_budget: {max_calls: 1}
tools:
  refund:
    schema:
      type: object
      properties:
        customer: {type: string, description: "The customer's id"}
        amount: {type: integer, minimum: 1, maximum: 500}
        currency: {enum: [USD, EUR]}
        reason: {type: string}
      required: [customer, amount]
machines:
  - name: look-first
    key: "{customer}"
    initial: unseen
    transitions:
      - {on: look, from: "*", to: seen}
      - {on: refund, from: seen, to: seen, on_violation: {action: warn, reason: "{customer} was not looked at."}}
contracts:
  - {name: large, on: refund, require: "args.amount <= 300", otherwise: ask, reason: "refunds over 300 want a second look"}
approvals:
  default: {approvers: [group:leads], timeout: 15m}
  rules:
    - {on: quick, approvers: [group:leads], timeout: 60s}
    - {on: ask_human, approvers: [group:leads], may_answer: true}
    - {on: deploy, approvers: [user:eve], timeout: 15m}
    - {on: wire, approvers: [group:leads], quorum: 2, timeout: 15m, may_answer: true}
groups: {leads: [ana, bob]}
"""


class World:
    """The running pair, and what tests do to it from a thread of theirs."""

    def __init__(self, portal: BlockingPortal, live: Live, clock: Clock, desk: Desk, folder: Path) -> None:
        self.portal, self.bus, self.desk, self.folder = portal, live.bus, desk, folder
        self._live, self._clock = live, clock
        self.origin = desk.settings.origin

    def later(self, seconds: float) -> None:
        """Deadlines of the next seconds come now."""
        self.portal.call(self._clock.forward, self._live, seconds)

    def ask(self, agent: str, tool: str, args: dict[str, Any], run: str | None = None) -> tuple[str, Verdict]:
        """One call of a run that stays open: the run's id and the first verdict."""

        async def work() -> tuple[str, Verdict]:
            async with self.bus.agent(agent) as gate:
                opened = gate.run(task=f"{tool} for a test", run=run)
                await opened.__aenter__()
                return opened.id, await opened.check(tool, args)

        return self.portal.call(work)

    @contextmanager
    def waiting(self, agent: str, tool: str, args: dict[str, Any]) -> Iterator[Waiting]:
        """A call that waits for people, and the agent that waits for the verdict."""
        with self.portal.wrap_async_context_manager(self.bus.agent(agent)) as gate:
            yield Waiting(self, gate, tool, args)

    def path(self, ticket: str | None) -> str:
        """The address of a ticket, once the console knows it."""
        assert ticket is not None
        line = blocking_until(lambda: self.desk.board.find(ticket))
        return f"/tickets/{line.thread}/{line.run}/{ticket}"

    @contextmanager
    def visitor(self, name: str = "", password: str = PASSWORD) -> Iterator[Visitor]:
        """A browser without a window, logged in where a name is given."""
        with httpx.Client(base_url=self.origin, headers={"accept": "text/html", "origin": self.origin}, timeout=PATIENCE) as http:
            visitor = Visitor(http)
            if name:
                answer = visitor.log_in(name, password)
                assert answer.status_code == 303, answer.text
            yield visitor


class Waiting:
    """A call on its way: `ticket` waits, `verdict()` is what the agent hears in the end."""

    def __init__(self, world: World, gate: client.Gate, tool: str, args: dict[str, Any]) -> None:
        self._world = world

        async def begin() -> tuple[Any, Verdict]:
            run = gate.run(task=f"{tool} for a test")
            await run.__aenter__()
            return run, await run.check(tool, args)

        self.run, self.first = world.portal.call(begin)
        assert self.first.decision == "suspend", self.first
        self.ticket = str(self.first.ticket)
        self.path = world.path(self.ticket)
        self._future = world.portal.start_task_soon(self.run.resume, self.first)

    def verdict(self) -> Verdict:
        found = self._future.result(PATIENCE)
        assert isinstance(found, Verdict)
        return found


class Visitor:
    """Forms are sent as a browser would: with the token of the page that they stand on."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def token(self, path: str = "/") -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.http.get(path).text)
        assert found, f"no form on {path}"
        return found[1]

    def field(self, path: str, name: str) -> str:
        found = re.search(rf'name="{name}" value="([^"]*)"', self.http.get(path).text)
        assert found, f"no field `{name}` on {path}"
        return found[1]

    def log_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        token = self.token("/login")
        return self.http.post("/login", data={"csrf": token, "name": name, "password": password})

    def answer(self, path: str, decision: str, **fields: str) -> httpx.Response:
        """Answer a ticket from its page; what the next page says."""
        page = self.http.get(path).text
        found = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
        sent = self.http.post(f"{path}/{decision}", data={**found, **fields})
        return self.http.get(sent.headers["location"]) if sent.status_code == 303 else sent


@contextmanager
def world(
    folder: Path, policy: str = POLICY, *, people: bool = True, oidc: Callable[[str], Oidc] | None = None
) -> Iterator[World]:
    """The pair, with the people `ana` and `bob` (leads), `eve`, `cy` who owns `payer`, and the auditor `audrey`."""
    write_policy(folder, policy)
    held = People(folder / "console" / "users.json")
    for name in ("ana", "bob", "cy", "eve", "audrey") if people else ():
        held.put(Person(name, CHEAP, auditor=name == "audrey"))
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        enter = portal.wrap_async_context_manager
        server = stack.enter_context(enter(embedded_server(folder / "bus", USERS, start_seconds=PATIENCE)))
        bus = Bus(server.bus.url, server.bus.users)
        clock = Clock(stack.enter_context(pytest.MonkeyPatch.context()))
        live = stack.enter_context(enter(daemon_on(bus, folder)))
        serving = Serving(held, Passwords(folder / "bus" / "bus.json"), port=0, setup=SETUP, oidc=oidc)
        desk = stack.enter_context(enter(running(serving)))
        made = World(portal, live, clock, desk, folder)
        blocking_until(lambda: desk.board.ready and desk.past.ready)
        yield made
