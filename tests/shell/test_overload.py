"""Floods, slow readers and many connections: who floods waits behind itself, and is told so; others keep their pace."""

import resource
import socket
from pathlib import Path

import anyio
import anyio.lowlevel
import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.client import Verdict
from gated.events import ThreadId
from gated.shell import mailbox
from gated.shell.mailbox import Mailbox
from gated.wire import Refusal
from patience import PATIENCE
from shell.live import agent, decided, ears, gate, intents, tell

Item = tuple[str, str, int]


def made() -> Mailbox[Item]:
    return Mailbox(lambda item: ThreadId(item[0]), lambda item: item[1])


# --- taking turns -----------------------------------------------------------------------------------------------------


def test_agents_take_turns() -> None:
    box = made()
    for number in range(5):
        box.put((f"t{number}", "flood", number))
    box.put(("u", "calm", 0))
    assert [agent for _, agent, _ in box.take(4)] == ["flood", "calm", "flood", "flood"]
    assert len(box) == 2
    assert ThreadId("t3") in box
    assert ThreadId("t0") not in box


def test_an_agent_is_crowded_by_its_own_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "CROWDED", 3)
    box = made()
    for number in range(3):
        box.put(("t", "flood", number))
    assert box.crowded("flood")
    assert not box.crowded("calm")
    box.take(1)
    assert not box.crowded("flood")


@given(st.lists(st.tuples(st.sampled_from("tuv"), st.sampled_from(["a", "b", ""]), st.integers(0, 9)) | st.integers(1, 4)))
def test_a_threads_inputs_leave_in_the_order_they_came(steps: list[Item | int]) -> None:
    """Whoever said them: an answer must not overtake the intent that it is about, nor a timer the answer before it."""
    box = made()
    said: list[Item] = []
    taken: list[Item] = []
    for step in steps:
        if isinstance(step, int):
            taken += box.take(step)
        else:
            box.put((step[0], step[1], len(said)))
            said.append((step[0], step[1], len(said)))
    taken += box.take(10_000)
    assert len(box) == 0
    assert sorted(taken, key=lambda item: item[2]) == said
    for thread in "tuv":
        numbers = [number for name, _, number in taken if name == thread]
        assert numbers == sorted(numbers)


# --- a flood ----------------------------------------------------------------------------------------------------------


async def test_a_flood_is_refused_safely_and_others_keep_their_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 intents at once from one agent: it is told `ingress.overloaded`, asks again, and is decided once each."""
    monkeypatch.setattr(mailbox, "CROWDED", 200)  # so that it is a flood also for the fastest machine
    async with gate(tmp_path) as live, live.bus.user("agent", "worker") as flooder, live.bus.agent("mailer") as calm:
        heard = await ears(flooder, "worker")

        async def flood() -> None:
            for number in range(5000):
                await tell(flooder, agent("worker"), f"f{number % 50}", intents((f"c{number}", "search", {"q": "x" * 200})))
            await flooder.flush()

        async def ask(number: int) -> None:
            assert (await calm.run(run=f"calm{number}").check("search", {"q": "a"})).decision == "allow"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            for number in range(10):
                await ask(number)
        answers = await heard.count(5000, 2 * PATIENCE)
        refused = [answer for answer in answers if isinstance(answer, Refusal)]
        verdicts = {answer.call for answer in answers if isinstance(answer, Verdict)}
        assert refused
        assert {(answer.code, answer.seq) for answer in refused} == {("ingress.overloaded", 0)}
        assert "publish it again" in refused[0].reason
        assert not verdicts & {answer.call for answer in refused}
        again = [str(answer.call) for answer in refused][:100]
        for call in again:
            await tell(flooder, agent("worker"), f"f{int(call[1:]) % 50}", intents((call, "search", {"q": "x" * 200})))
        await heard.until(lambda: sum(isinstance(m, Verdict) and m.call in again for _, m in heard.heard) >= 100)
        assert live.daemon.runs.health.overloaded == len(refused)
    found = await decided(live.log)
    assert {len(each) for call, each in found.items()} == {1}
    assert set(again) <= set(found)


async def test_an_agent_that_reads_nothing_holds_up_nobody(tmp_path: Path) -> None:
    """A slow client: the server drops its connection or its messages, the daemon does not wait for it."""
    async with gate(tmp_path) as live, live.bus.agent("mailer") as calm:
        url = live.bus.url.removeprefix("nats://").split(":")
        stream = await anyio.connect_tcp(url[0], int(url[1]))
        await stream.receive()
        password = live.bus.passwords["agent:worker"]
        hello = f'CONNECT {{"verbose":false,"pedantic":false,"user":"agent:worker","pass":"{password}"}}\r\n'
        await stream.send(f"{hello}SUB gated.out.*.*.agent.worker 1\r\nPING\r\n".encode())
        async with live.bus.user("agent", "worker") as talker:
            for number in range(1000):
                await tell(talker, agent("worker"), f"s{number % 10}", intents((f"c{number}", "search", {"q": "x" * 2000})))
            await talker.flush()
            for number in range(20):
                with anyio.fail_after(PATIENCE):
                    await calm.run(run=f"calm{number}").check("search", {"q": "a"})
        await stream.aclose()


async def test_a_thousand_connections_at_once_are_served(tmp_path: Path) -> None:
    async with gate(tmp_path) as live:
        credentials = live.bus.credentials("agent", "worker")
        clients = []
        for _ in range(20):
            batch = [nats.connect(live.bus.url, **credentials) for _ in range(50)]
            clients += [await one for one in batch]
        heard = await ears(clients[0], "worker")
        for number, client in enumerate(clients):
            await tell(client, agent("worker"), f"r{number}", intents((f"c{number}", "search", {"q": "a"})))
        assert len(await heard.count(1000, 2 * PATIENCE)) == 1000
        for client in clients:
            await client.close()
    assert len(await decided(live.log)) == 1000


async def test_ten_thousand_connections_are_held_and_others_served(tmp_path: Path) -> None:
    """Raw connections, logged in and listening: the client of each would take longer than what is tested."""
    wanted = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted + 1000:
        pytest.skip(f"this machine lets a process have {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + 1000, hard))
    try:
        async with gate(tmp_path) as live, live.bus.agent("mailer") as calm:
            host, port = live.bus.url.removeprefix("nats://").split(":")
            password = live.bus.passwords["agent:worker"]
            hello = f'CONNECT {{"verbose":false,"user":"agent:worker","pass":"{password}"}}\r\nPING\r\n'.encode()
            held = [await _logged_in(host, int(port), hello) for _ in range(wanted)]
            for number in range(20):
                assert (await calm.run(run=f"r{number}").check("search", {"q": "a"})).decision == "allow"
            for one in held:
                one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _logged_in(host: str, port: int, hello: bytes) -> socket.socket:
    one = socket.create_connection((host, port), timeout=30)
    one.recv(4096)
    one.sendall(hello)
    assert b"PONG" in one.recv(4096)
    if one.fileno() % 64 == 0:
        await anyio.lowlevel.checkpoint()
    return one
