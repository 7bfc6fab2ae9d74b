"""What `gated up` runs beside the gate: the console, as a process of its own, and bus users for people who are added meanwhile.

The console's work must not hold up verdicts, and its end must not end the gate; so it shares nothing with it but the bus.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from gated import ingress, wire
from gated.console.people import People, PeopleError
from gated.core.approval_rules import people_of
from gated.core.policy import Policy
from gated.errors import GatedError
from gated.shell.embedded import Server
from gated.shell.nats_config import UserRole
from gated.shell.policies import read_policy
from gated.shell.watching import changes_in

log = structlog.get_logger("gated.up")

FOLDER = "console"  # of the data folder
USERS = "users.json"


def users_file(data: Path) -> Path:
    """Where the users of a gate's console stand: in a folder of their own, which is cheap to watch."""
    return data / FOLDER / USERS


def bus_users(policy: Policy, people: People) -> list[tuple[UserRole, str]]:
    """A user of the embedded bus for every agent, its runner and every person, and one for each other role."""
    users: list[tuple[UserRole, str]] = [("agent", name) for name in policy.agents]
    runners = {p.outcomes_from.removeprefix("runner:") for p in policy.agents.values() if p.outcomes_from != "agent"}
    users += [("runner", name) for name in sorted(runners)]
    try:
        known = set(people.all())
    except PeopleError as error:
        log.error("the file of users cannot be read", error=str(error))
        known = set()
    users += [("approver", name) for name in sorted(people_of(policy.approvals) | known | {"local"})]
    users += [("judge", name) for name in _judges(policy)]
    return [*users, ("operator", "local"), ("auditor", "local"), ("console", "")]


def _judges(policy: Policy) -> list[str]:
    """The judge whom the policy asks over the bus, where it listens as the permissions provide for."""
    judge = None if policy.semantic is None else policy.semantic.judge
    name = "" if judge is None or judge.nats is None else judge.nats.removeprefix(f"{wire.PREFIX}.judge.")
    return [name] if ingress.is_id(name) else []


async def keep_users(server: Server, path: Path, people: People, stopped: anyio.Event) -> None:
    """Give everybody a user of the bus whom the policy or the file of users names from now on."""
    folder = path if await anyio.Path(path).is_dir() else path.parent
    async for changed in changes_in(folder, people.path.parent, until=stopped):
        if any(file == people.path or path in (file, file.parent) for file in changed):
            try:
                policy = await anyio.to_thread.run_sync(read_policy, path)
                admitted = await server.admit(bus_users(policy, people))
            except (GatedError, OSError) as error:
                log.error("nobody new is let in to the bus", error=str(error))
                continue
            if admitted:
                log.info("new users of the bus", users=", ".join(admitted))


async def run_console(data: Path, port: int | None, stopping: Callable[[], bool]) -> None:
    """Run the console until this task is cancelled."""
    command = [sys.executable, "-m", "gated", "console", "--data", str(data), "--while-stdin"]
    command += [] if port is None else ["--port", str(port)]
    try:
        process = await anyio.open_process(command, stdin=subprocess.PIPE, stdout=None, stderr=None)
    except OSError as error:
        log.error("the console cannot be started, the gate goes on without it", error=str(error))
        return
    try:
        status = await process.wait()
        if not stopping():
            log.error("the console ended, the gate goes on without it: start another with `gated console`", status=status)
    finally:
        with anyio.CancelScope(shield=True):
            assert process.stdin is not None
            await process.stdin.aclose()  # the console ends with it
            with anyio.move_on_after(5):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
