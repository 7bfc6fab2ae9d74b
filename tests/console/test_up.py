"""`gated up` with its console, as somebody meets it at the first start; and `gated users`."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import anyio
import httpx
import pytest

from cli.command import gated
from console.world import PASSWORD, Visitor
from gated import client
from gated.console.people import People, unseal, verified
from patience import PATIENCE, blocking_until

POLICY = """
version: 1
agents:
  payer: {checks: [privilege], allowed_tools: [refund], approval_required: [refund], data_scope: any}
"""


@contextmanager
def up(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "policy.yaml").write_text(POLICY)
    command = [
        sys.executable,
        "-m",
        "gated",
        "up",
        "--policy",
        str(folder / "policy.yaml"),
        "--data",
        str(folder / "data"),
        *more,
    ]
    with (folder / "out").open("w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, text=True)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0


def said(folder: Path, pattern: str) -> str:
    out = folder / "out"
    found = blocking_until(lambda: re.search(pattern, out.read_text()), out.read_text)
    return str(found[1])


def test_the_first_person_sets_up_the_console_and_answers_a_ticket(tmp_path: Path) -> None:
    with up(tmp_path, "--console-port", "0"):
        origin = said(tmp_path, r"console +(http://127\.0\.0\.1:\d+)\s")
        link = said(tmp_path, rf"create the first user at {origin}(/setup/\S+)\s")
        with httpx.Client(base_url=origin, headers={"accept": "text/html", "origin": origin}, timeout=PATIENCE) as http:
            visitor = Visitor(http)
            data = {"csrf": visitor.token(link), "name": "olga", "password": PASSWORD, "again": PASSWORD}
            assert http.post(link, data=data).status_code == 303
            anyio.run(_ask_and_approve, tmp_path / "data", visitor)


async def _ask_and_approve(data: Path, visitor: Visitor) -> None:
    """`olga` is named nowhere in the policy, and has been a user of the bus for a moment only."""
    async with client.connect(agent="payer", data=data) as gate, gate.run(task="refunds") as run:
        asked = await run.check("refund", {"amount": 1})
        path = f"/tickets/{run.thread}/{run.id}/{asked.ticket}"
        async with anyio.create_task_group() as tasks:

            async def approve() -> None:
                page = await anyio.to_thread.run_sync(visitor.answer, path, "approve")
                assert "Approved." in page.text

            tasks.start_soon(approve)
            assert (await run.resume(asked)).decision == "allow"


def test_a_gate_can_go_without_a_console(tmp_path: Path) -> None:
    with up(tmp_path, "--no-console"):
        said(tmp_path, "(gated is up)")
        sleep(1)
        assert "console" not in (tmp_path / "out").read_text()


def test_a_gate_whose_bus_is_killed_says_so_and_has_failed(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = [sys.executable, "-m", "gated", "up", "--policy", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "data")]
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen([*command, "--no-console"], stdout=out, stderr=out, text=True)
    said(tmp_path, "(gated is up)")
    os.kill(int((tmp_path / "data" / "bus" / "server.lock").read_text()), signal.SIGKILL)
    assert running.wait(PATIENCE) == 1
    told = (tmp_path / "out").read_text()
    assert "error: the embedded nats-server ended with status -9" in told
    assert "Traceback" not in told


def test_a_gate_whose_bus_can_write_no_more_says_so_and_has_failed(tmp_path: Path) -> None:
    """Found with a full disk: the server took nothing from then on, also with room again, and the gate said that all was well."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = [sys.executable, "-m", "gated", "up", "--policy", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "data")]
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen([*command, "--no-console"], stdout=out, stderr=out, text=True)
    said(tmp_path, "(gated is up)")
    with (tmp_path / "data" / "bus" / "server.log").open("a") as log:
        log.write("[9] 2026/11/30 12:26:31.23 [ERR] JetStream stream 'S' critical write error: no space left on device\n")
    assert running.wait(20) == 1
    told = (tmp_path / "out").read_text()
    assert "takes nothing any more: JetStream stream 'S' critical write error: no space left on device; make room" in told
    assert "Traceback" not in told


def test_the_console_ends_with_a_gate_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = [sys.executable, "-m", "gated", "up", "--policy", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "data")]
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen([*command, "--console-port", "0"], stdout=out, stderr=out, text=True)
    origin = said(tmp_path, r"console +(http://127\.0\.0\.1:\d+)\s")
    assert httpx.get(f"{origin}/login").status_code == 200
    os.kill(running.pid, signal.SIGKILL)
    running.wait(PATIENCE)
    blocking_until(lambda: not _answers(origin), lambda: "the console outlived its gate")


def _answers(origin: str) -> bool:
    try:
        return httpx.get(f"{origin}/login", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_beyond_this_machine_nobody_is_let_in_by_a_link(tmp_path: Path) -> None:
    code, _, error = gated("console", "--data", tmp_path, "--host", "0.0.0.0")
    assert code == 2
    assert "add a user first with `gated users add`" in error


# --- gated users ---------------------------------------------------------------------------------------------------------


def test_users_are_added_listed_given_passwords_and_removed(tmp_path: Path) -> None:
    here = ("--data", tmp_path)
    assert gated("users", "add", "ana", "--auditor", "--password-stdin", *here, said=f"{PASSWORD}\n")[0] == 0
    assert gated("users", "add", "bob", *here, said=f"{PASSWORD}\n{PASSWORD}\n")[0] == 0
    assert gated("users", "add", "cy", "--oidc", "cy@corp.example", *here)[0] == 0
    listed = json.loads(gated("users", "ls", "--json", *here)[1])
    assert listed == [
        {"name": "ana", "auditor": True, "hash": True, "bus": False},
        {"name": "bob", "hash": True, "bus": False},
        {"name": "cy", "oidc": "cy@corp.example", "hash": False, "bus": False},
    ]
    assert "sees everything" in gated("users", "ls", *here)[1]
    assert gated("users", "passwd", "ana", "--password-stdin", *here, said="another password\n")[0] == 0
    people = People(tmp_path / "console" / "users.json")
    assert verified(people.find("ana"), "another password")
    assert verified(people.find("bob"), PASSWORD)
    assert gated("users", "rm", "bob", *here)[0] == 0
    assert list(people.all()) == ["ana", "cy"]


def test_a_bus_password_is_sealed_and_sealed_again(tmp_path: Path) -> None:
    here = ("--data", tmp_path, "--password-stdin")
    assert gated("users", "add", "ana", "--bus-password", *here, said=f"{PASSWORD}\non the bus\n")[0] == 0
    people = People(tmp_path / "console" / "users.json")
    assert "on the bus" not in people.path.read_text()
    held = people.find("ana")
    assert held is not None
    assert unseal(held.bus, PASSWORD) == "on the bus"
    assert unseal(held.bus, "another password") is None
    code, _, error = gated("users", "passwd", "ana", *here, said="another password\n")
    assert code == 2
    assert "give it again with --bus-password" in error
    assert gated("users", "passwd", "ana", "--bus-password", *here, said="another password\nnew on the bus\n")[0] == 0
    changed = people.find("ana")
    assert changed is not None
    assert unseal(changed.bus, "another password") == "new on the bus"


@pytest.mark.parametrize(
    ("arguments", "typed", "why"),
    [
        (("add", "ana"), "short\nshort\n", "at least 12 characters"),
        (("add", "a.b", "--password-stdin"), f"{PASSWORD}\n", "cannot be a name on the bus"),
        (("rm", "ana"), "", "there is no user `ana`: the users are none"),
        (("passwd", "ana", "--password-stdin"), f"{PASSWORD}\n", "there is no user `ana`"),
    ],
)
def test_what_cannot_be_done_with_users_says_why(tmp_path: Path, arguments: tuple[str, ...], typed: str, why: str) -> None:
    code, _, error = gated("users", *arguments, "--data", tmp_path, said=typed)
    assert code == 2
    assert why in error
