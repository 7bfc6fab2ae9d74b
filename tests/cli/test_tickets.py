"""`gated tickets`: looking, answering and watching, against a real gate."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from cli.command import gated
from gated.cli.desk import Whereabouts
from gated.cli.tickets import who_instead
from gated.client import Call, Verdict
from patience import PATIENCE
from shell.live import POLICY, Live, gate

MAY_ANSWER = POLICY.replace("timeout: 15m", "timeout: 15m, may_answer: true")
URGENT = POLICY.replace(
    "timeout: 15m}",
    "timeout: 15m}\n  rules:\n"
    "    - {on: refund, when: 'args.amount == 2', approvers: [group:leads], timeout: 1h}\n"
    "    - {on: refund, when: 'args.amount == 3', approvers: [group:leads], timeout: 5m}",
)


@contextmanager
def asked(folder: Path, *amounts: int, policy: str = MAY_ANSWER) -> Iterator[tuple[list[str], Callable[[str], Verdict]]]:
    """A gate with a ticket for each amount, their ids, and what became of a call."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(gate(folder, policy)) as live:
        tickets = portal.call(ask, live, amounts)
        yield tickets, lambda call: portal.call(verdict_of, live, call)


async def ask(live: Live, amounts: tuple[int, ...]) -> list[str]:
    async with live.bus.agent("payer") as payer:
        calls = [Call("refund", {"amount": amount}, id=f"c{amount}") for amount in amounts]
        return [str(verdict.ticket) for verdict in await payer.run(run="r").check_batch(calls)]


async def verdict_of(live: Live, call: str) -> Verdict:
    async with live.bus.agent("payer") as payer:
        return await payer.run(run="r", resume=True).resume(call, wait=False)


def tickets(folder: Path, *arguments: object) -> tuple[int, str, str]:
    by = () if "--as" in arguments else ("--as", "ana")
    return gated("tickets", *arguments, *by, "--data", folder)


def test_looking(tmp_path: Path) -> None:
    with asked(tmp_path, 1, 2) as (ids, _):
        _, text, _ = tickets(tmp_path, "ls")
        assert [line.split()[0] for line in text.splitlines()[1:]] == sorted(ids)
        listed = json.loads(tickets(tmp_path, "ls", "--json")[1])
        assert {line["ticket"]: line["preview"] for line in listed} == {ids[0]: '{"amount":1}', ids[1]: '{"amount":2}'}
        shown = json.loads(tickets(tmp_path, "show", ids[0], "--json")[1])
        assert shown["calls"] == [{"call": "c1", "tool": "refund", "args": {"amount": 1}, "args_sha256": shown["args_sha256"]}]
        assert shown["expires_at"].endswith("Z")
        _, text, _ = tickets(tmp_path, "show", ids[0])
        assert '{"amount": 1}' in text
        assert "1 of group:leads (not payer)" in text
        assert tickets(tmp_path, "show", "t404")[0] == 1


def test_what_expires_first_stands_first(tmp_path: Path) -> None:
    with asked(tmp_path, 1, 2, 3, policy=URGENT) as ((quarter, hour, minutes), _):
        wanted = [minutes, quarter, hour]
        assert [line["ticket"] for line in json.loads(tickets(tmp_path, "ls", "--json")[1])] == wanted
        assert [line.split()[0] for line in tickets(tmp_path, "ls")[1].splitlines()[1:]] == wanted


def test_whoever_did_not_say_who_they_are_hears_how(tmp_path: Path) -> None:
    code = "approvals.not_authorised"
    assert "you are `local` here: say with --as who you are" in who_instead(Whereabouts("local", tmp_path), code)
    assert who_instead(Whereabouts("ana", tmp_path), code) == ""
    assert who_instead(Whereabouts("local", tmp_path), "approvals.expired") == ""


def test_a_list_by_a_pipe_has_every_cell_whole(tmp_path: Path) -> None:
    """It was cut at 80 columns, for whoever looked for a word in it."""
    amount = 10**110
    with asked(tmp_path, amount) as ((ticket,), _):
        (listed,) = json.loads(tickets(tmp_path, "ls", "--json")[1])
        head, line = tickets(tmp_path, "ls")[1].splitlines()
        assert head.split() == ["ticket", "left", "agent", "call", "why"]
        assert line.startswith(f"{ticket}  ")
        assert f'  refund {{"amount":{amount}}}  ' in line
        assert line.endswith(listed["asks"][0]["reason"])


def test_answering(tmp_path: Path) -> None:
    with asked(tmp_path, 1, 2, 3, 4, 5) as (ids, became):
        status, text, _ = tickets(tmp_path, "approve", ids[0], "--as", "bob", "--note", "fine")
        assert (status, text) == (0, f"ticket {ids[0]} is approved by bob: `refund` may run now\n")
        status, text, _ = tickets(tmp_path, "reject", ids[1], "--as", "bob", "--note", "no receipt", "--json")
        assert (status, json.loads(text)["details"]["answer"]["note"]) == (0, "no receipt")
        status, text, _ = tickets(tmp_path, "approve", ids[2], "--as", "bob", "--args", '{"amount": 30}')
        assert (status, text) == (0, f"ticket {ids[2]} is edited by bob: `refund` may run now with the edited arguments\n")
        assert tickets(tmp_path, "approve", ids[3], "--as", "bob", "--result", '"by hand"')[0] == 0
        assert became("c1").decision == "allow"
        assert (became("c2").code, became("c2").reason) == ("approvals.rejected", "rejected by bob: no receipt")
        assert (became("c3").edited, became("c3").args) == (True, {"amount": 30})
        assert (became("c4").execute, became("c4").result) == (False, "by hand")
        status, _, error = tickets(tmp_path, "approve", ids[4], "--remember", 'refund(amount = "9")')
        assert (status, "approvals.remember: `refund" in error) == (1, True)
        status, text, _ = tickets(tmp_path, "approve", ids[4], "--remember", "Refund", "--json")
        assert (status, json.loads(text)["code"]) == (1, "approvals.remember")
        status, _, error = tickets(tmp_path, "reject", ids[0], "--as", "ana")
        assert (status, "approvals.already_decided: " in error, "approve by bob at 20" in error) == (1, True, True)
        status, _, error = tickets(tmp_path, "show", ids[1])
        assert (status, "is rejected: reject by bob at 20" in error) == (1, True)
        assert tickets(tmp_path, "approve", "t404", "--as", "bob")[0] == 1
        assert tickets(tmp_path, "approve", ids[4], "--args", "{")[0] == 2
        status, _, error = tickets(tmp_path, "approve", ids[4], "--args", "[1]")
        assert (status, "`--args` is no JSON object" in error) == (2, True)
        status, _, error = tickets(tmp_path, "ls", "--as", "eve")
        assert (status, "it knows ana, bob" in error) == (2, True)


def test_remembering_and_forgetting(tmp_path: Path) -> None:
    with asked(tmp_path, 1) as (ids, _):
        assert tickets(tmp_path, "approve", ids[0], "--as", "ana", "--remember", "refund", "--for", "run")[0] == 0
        assert tickets(tmp_path, "forget", "--run", "r")[1] == f"{ids[0]}-run  ana approved refund for this run\n"
        assert json.loads(tickets(tmp_path, "forget", "--run", "r", "--json")[1])[0]["by"] == "ana"
        assert tickets(tmp_path, "forget", f"{ids[0]}-run", "--run", "r", "--as", "ana")[0] == 0
        assert tickets(tmp_path, "forget", "--run", "r")[1] == "run r remembers nothing\n"
        status, _, error = tickets(tmp_path, "forget", "t404-run", "--run", "r")
        assert (status, "run `r` remembers nothing" in error) == (1, True)


def test_no_gate_is_said_so(tmp_path: Path) -> None:
    status, _, error = tickets(tmp_path, "ls")
    assert (status, "start one with `gated up`" in error) == (2, True)
    assert gated("tickets", "ls", "--nats", "nats://127.0.0.1:1")[0] == 2


# --- watch -------------------------------------------------------------------------------------------------------------


def watching(folder: Path, *options: str, **how: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gated", "tickets", "watch", "--data", str(folder), "--as", "bob", *options]
    return subprocess.Popen(command, **how)


def test_watching_without_a_terminal_is_a_line_for_everything(tmp_path: Path) -> None:
    with asked(tmp_path, 1) as (ids, _), watching(tmp_path, "--json", stdout=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["event"] == "waits"
        tickets(tmp_path, "reject", ids[0], "--as", "ana")
        said = json.loads(watch.stdout.readline())
        assert (said["event"], said["ticket"], said["state"], said["details"]["answer"]["by"]) == (
            "closed",
            ids[0],
            "rejected",
            "ana",
        )
        watch.kill()


def test_watching_on_a_terminal_and_answering_by_key(tmp_path: Path) -> None:
    with asked(tmp_path, 1, 2) as (ids, became):
        mine, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        with watching(tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as watch:
            os.close(theirs)
            seen(mine, "2 tickets wait")
            os.write(mine, b"a")
            seen(mine, '"amount": ')
            os.write(mine, b"a")
            seen(mine, "is approved")
            os.write(mine, b"r")
            seen(mine, "why reject?")
            os.write(mine, b"too much\r")
            seen(mine, "is rejected")
            os.write(mine, b"q")
            rest(mine)
            assert watch.wait(PATIENCE) == 0
        os.close(mine)
        assert sorted(str(became(call).code or became(call).decision) for call in ("c1", "c2")) == ["allow", "approvals.rejected"]
        assert ids


def seen(handle: int, wanted: str) -> None:
    """Read what the terminal is told until it was this."""
    until, text = time.monotonic() + 15, ""
    while wanted not in text:
        assert time.monotonic() < until, text
        text += os.read(handle, 65_536).decode(errors="replace")


def rest(handle: int) -> None:
    try:
        while os.read(handle, 65_536):
            pass
    except OSError:
        pass  # the other side is gone
