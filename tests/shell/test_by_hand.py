"""What somebody removes or writes by hand on the server while a gate or a cluster runs: it goes on, or says what is wrong."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from gated.client import Verdict
from gated.shell import upkeep
from gated.shell.connection import BusError
from gated.shell.input_places import SPARE
from gated.shell.log.jetstream_streams import SetupError
from gated.shell.partition import leaves
from patience import PATIENCE, until
from shell.live import Bus, agent, daemon_on, ears, gate, intents, server, tell, write_policy
from shell.live import decided as decided_in
from shell.test_worker import THREADS, ask, decided, settled, working


async def api(bus: Bus, verb: str, question: object = None) -> dict[str, Any]:
    body = b"" if question is None else json.dumps(question).encode()
    async with bus.user("daemon") as client:
        said: dict[str, Any] = json.loads((await client.request(f"$JS.API.{verb}", body, timeout=PATIENCE)).data)
    assert "error" not in said
    return said


def told(lines: list[Any], text: str) -> list[Any]:
    return [line for line in lines if text in line["event"]]


async def test_a_gate_whose_consumer_is_removed_makes_it_again_and_decides_what_came_meanwhile(tmp_path: Path) -> None:
    """It pulled from nothing, for ever, and said so to nobody."""
    with structlog.testing.capture_logs() as lines:
        async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker:
            heard = await ears(worker, "worker")
            await tell(worker, agent("worker"), "r", intents(("c0", "search", {})))
            await heard.count(1)
            await api(live.bus, "CONSUMER.DELETE.GATED_IN.gated")
            await tell(worker, agent("worker"), "r", intents(("c1", "search", {})))
            await heard.until(lambda: any(isinstance(said, Verdict) and said.call == "c1" for _, said in heard.heard))
    assert len(told(lines, "the consumer was gone")) == 1


async def test_inputs_count_on_behind_the_log_where_their_stream_is_another(tmp_path: Path) -> None:
    """On threads that the log had, what came was acknowledged, and nobody ever heard a verdict."""
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")

        async def ask_all(call: str) -> None:
            before = len(heard.heard)
            for thread in THREADS:
                await tell(worker, agent("worker"), thread, intents((f"{thread}-{call}", "search", {})))
            await heard.count(before + len(THREADS))

        async with daemon_on(bus, tmp_path):
            await ask_all("a")
            stream = (await api(bus, "STREAM.INFO.GATED_IN"))["config"]
        await api(bus, "STREAM.DELETE.GATED_IN")
        async with daemon_on(bus, tmp_path):
            assert (await api(bus, "STREAM.INFO.GATED_IN"))["state"]["last_seq"] == SPARE + 23
            await ask_all("b")
        await api(bus, "STREAM.DELETE.GATED_IN")
        await api(bus, "STREAM.CREATE.GATED_IN", stream)
        for deny in (True, False):
            await tell(worker, agent("worker"), "t0", intents(("lost", "search", {})))
            await worker.flush()
            if deny:
                await api(bus, "STREAM.UPDATE.GATED_IN", {**stream, "deny_purge": True})
                with pytest.raises(BusError, match=f"ends at 1, and the log has inputs up to {SPARE + 47}.*: remove the stream"):
                    async with daemon_on(bus, tmp_path):
                        pass
                await api(bus, "STREAM.DELETE.GATED_IN")
                await api(bus, "STREAM.CREATE.GATED_IN", stream)
        with structlog.testing.capture_logs() as lines:
            async with daemon_on(bus, tmp_path):
                await ask_all("c")
    assert [line["dropped"] for line in told(lines, "was behind the log")] == [1]
    assert (await decided_in(tmp_path / "log.db")).keys() == {f"{t}-{c}" for t in THREADS for c in "abc"}


async def test_consumers_of_a_cluster_that_are_removed_are_made_again_and_nothing_is_decided_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(tmp_path)
    monkeypatch.setattr(upkeep, "EVERY", 1.0)
    with structlog.testing.capture_logs() as lines:
        async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker, bus.user("operator", "local") as operator:
            heard = await ears(worker, "worker")
            async with working(bus, tmp_path, "w1", 4) as one, working(bus, tmp_path, "w2", 4) as two:
                await settled(one, two, partitions=4)
                await ask(bus, heard, "worker", THREADS, "a")
                for partition in range(3):
                    await api(bus, f"CONSUMER.DELETE.GATED_IN.gated-{partition}")
                status = json.loads((await operator.request("gated.api.cluster.status", b"", timeout=PATIENCE)).data)
                assert len(status["partitions"]) == 4
                for thread in THREADS:
                    await tell(worker, agent("worker"), thread, intents((f"{thread}-b", "search", {})))
                wanted = {f"{thread}-b" for thread in THREADS}
                await heard.until(lambda: wanted <= {said.call for _, said in heard.heard if isinstance(said, Verdict)})
            made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS for c in "ab"}
    assert {partition for line in told(lines, "consumers were gone") for partition in line["partitions"]} == {0, 1, 2}


async def test_a_stream_that_is_removed_or_changed_is_said_once_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(tmp_path)
    monkeypatch.setattr(upkeep, "EVERY", 0.2)
    with structlog.testing.capture_logs() as lines:
        async with server(tmp_path) as (_, bus), working(bus, tmp_path, "w1", 4):
            await api(bus, "STREAM.DELETE.GATED_TIMERS")
            await until(lambda: bool(told(lines, "the streams are not as they must be")))
            await anyio.sleep(1.0)
            names = (await api(bus, "STREAM.NAMES"))["streams"]
    assert [line["why"] for line in told(lines, "the streams are not as they must be")] == ["stream GATED_TIMERS is gone"]
    assert "GATED_TIMERS" not in names


async def test_a_lease_that_nobody_can_read_ends_a_session_and_no_worker(tmp_path: Path) -> None:
    """Whoever has the daemon's rights may write one; each worker ended on it, at every start."""
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker, bus.user("daemon") as daemon:
        heard = await ears(worker, "worker")
        async with working(bus, tmp_path, "w1", 1) as one:
            await ask(bus, heard, "worker", THREADS[:4], "a")
            names, secret = one.place.names, one.place.shape.secret
            await daemon.request(names.written(names.lease(0), secret), b"{}", timeout=PATIENCE)
            await ask(bus, heard, "worker", THREADS[:4], "b")
            assert one.owned == [0]
        async with working(bus, tmp_path, "w2", 1):
            await ask(bus, heard, "worker", THREADS[:4], "c")
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS[:4] for c in "abc"}


async def ends(bus: Bus, folder: Path, work: Callable[[], Awaitable[object]]) -> str:
    """Why a worker ends by itself, once some work was done."""
    try:
        async with working(bus, folder, "w2", 4) as made:
            await work()
            with anyio.fail_after(PATIENCE):
                await made.wait_stopping()
    except (SetupError, ExceptionGroup) as error:
        return "; ".join(map(str, leaves(error)))
    return "it was stopped"


async def test_a_worker_ends_where_inputs_are_counted_anew_under_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came on known threads was acknowledged, and nobody ever heard a verdict. Once the stream is gone, it counts on."""
    write_policy(tmp_path)
    monkeypatch.setattr(upkeep, "EVERY", 0.2)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with working(bus, tmp_path, "w1", 4):
            await ask(bus, heard, "worker", THREADS, "a")
            stream = (await api(bus, "STREAM.INFO.GATED_IN"))["config"]

        async def anew() -> None:
            await api(bus, "STREAM.DELETE.GATED_IN")
            await api(bus, "STREAM.CREATE.GATED_IN", stream)

        async def work() -> None:
            await ask(bus, heard, "worker", THREADS, "b")
            await anew()

        await anew()
        found = await ends(bus, tmp_path, anyio.lowlevel.checkpoint)
        assert found.startswith("the stream GATED_IN ends at 0, and the log has inputs up to 24")
        await api(bus, "STREAM.DELETE.GATED_IN")
        assert f"ends at 0, and the log has inputs up to {SPARE + 47}" in await ends(bus, tmp_path, work)
        made = await decided(bus)
    assert {call: len(each) for call, each in made.items()} == {f"{t}-{c}": 1 for t in THREADS for c in "ab"}
