"""`runs: {max_open}` in a cluster is as exact as in one daemon, whoever has the partitions, is lost, or has which policy."""

import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import get_args

import anyio
import pytest
from anyio import to_thread

from gated.shell.faults import OfPlaces, Point
from gated.shell.places import Places
from shell.cluster_load import Opener, most_open
from shell.live import Bus, server, write_policy
from shell.test_crash import dead
from shell.test_worker import heard_of, process, settled, working

POLICY = """
version: 1
agents:
  worker: {checks: [privilege], allowed_tools: ["*"], runs: {max_open: 3}}
  mailer: {checks: [privilege], allowed_tools: ["*"]}
"""
UNLIMITED = POLICY.replace(", runs: {max_open: 3}", "")


@asynccontextmanager
async def opening(folder: Path, policy: str = POLICY) -> AsyncIterator[tuple[Bus, Opener]]:
    write_policy(folder, policy)
    async with server(folder) as (_, bus), bus.user("agent", "worker") as client:
        opener = Opener(client, "worker")
        await opener.listen()
        yield bus, opener


async def tried(opener: Opener, name: str, count: int) -> list[bool]:
    """Whether each of so many runs may be opened, one after another."""
    return [await opener.attempt(f"{name}{n}", f"{name}{n}-{name}") for n in range(count)]


async def all_can_be_open(opener: Opener, name: str) -> None:
    """Nothing was left behind: as many runs as may be open can be opened, and no more."""
    for n in range(3):
        await opener.open(f"{name}{n}")
    assert not await opener.attempt(f"{name}3", f"{name}3-full")
    for n in range(3):
        await opener.finish(f"{name}{n}")


async def test_two_workers_open_no_more_runs_together_than_one_may(tmp_path: Path) -> None:
    async with opening(tmp_path) as (bus, opener):
        async with working(bus, tmp_path, "w1") as one, working(bus, tmp_path, "w2") as two:
            await settled(one, two)
            assert await tried(opener, "t", 8) == [True] * 3 + [False] * 5
            for n in range(3, 8):  # who is told that a run ended may open the next
                await opener.finish(f"t{n - 3}")
                assert await opener.attempt(f"t{n}", f"t{n}-b")
                assert not await opener.attempt("t9", f"t9-{n}")
            for n in range(5, 8):
                await opener.finish(f"t{n}")
            await opener.flood([f"f{n}" for n in range(40)])
            await all_can_be_open(opener, "a")
        assert await most_open(bus, "worker") == (3, 0)


@pytest.mark.parametrize("point", [*get_args(Point), *get_args(OfPlaces)])
async def test_a_worker_killed_anywhere_lets_no_run_too_many_open_and_leaves_no_place_behind(tmp_path: Path, point: str) -> None:
    async with opening(tmp_path) as (bus, opener):
        with process(bus, tmp_path, "w1", fault=f"{point}:6") as one, process(bus, tmp_path, "w2") as two, ExitStack() as later:
            for name in ("w1", "w2"):
                await to_thread.run_sync(heard_of, tmp_path, name, "gated works")
            await anyio.sleep(1.5)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(opener.flood, [f"f{n}" for n in range(40)])
                await dead(one)
                later.enter_context(process(bus, tmp_path, "w3"))
            await all_can_be_open(opener, "a")
            two.send_signal(signal.SIGTERM)
            await all_can_be_open(opener, "b")
        assert await most_open(bus, "worker") == (3, 0)


async def test_a_worker_that_was_stopped_in_the_middle_opens_nothing_when_it_wakes(tmp_path: Path) -> None:
    async with opening(tmp_path) as (bus, opener):
        with process(bus, tmp_path, "w1") as one, process(bus, tmp_path, "w2"):
            for name in ("w1", "w2"):
                await to_thread.run_sync(heard_of, tmp_path, name, "gated works")
            await anyio.sleep(1.5)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(opener.flood, [f"f{n}" for n in range(60)], 0.02)
                for _ in range(2):
                    await anyio.sleep(0.7)
                    one.send_signal(signal.SIGSTOP)
                    await anyio.sleep(8.0)  # the partitions are another's by then
                    one.send_signal(signal.SIGCONT)
            await all_can_be_open(opener, "a")
        assert await most_open(bus, "worker") == (3, 0)


async def test_what_a_lost_worker_had_not_given_back_is_free_at_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: Places, seconds: float = 0.0) -> None: ...

    async with opening(tmp_path) as (bus, opener):
        with monkeypatch.context() as lost:
            async with working(bus, tmp_path, "w1", 1):
                assert await tried(opener, "t", 3) == [True] * 3
                for step in ("given_back", "_write"):
                    lost.setattr(Places, step, nothing)
                await opener.finish("t0")
                await opener.finish("t2")
        async with working(bus, tmp_path, "w2", 1):
            assert await tried(opener, "v", 3) == [True, True, False]
        assert await most_open(bus, "worker") == (3, 3)


# --- whose policy has the limit, and since when --------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [8, 1])
async def test_runs_that_were_open_before_there_was_a_limit_count(tmp_path: Path, partitions: int) -> None:
    async with opening(tmp_path, UNLIMITED) as (bus, opener):
        async with working(bus, tmp_path, "w1", partitions):
            assert all(await tried(opener, "t", 6))
            await opener.finish("t0")
        write_policy(tmp_path, POLICY)
        async with working(bus, tmp_path, "w2", partitions):
            assert not await opener.attempt("u", "u-full")
            for n in range(1, 4):
                await opener.finish(f"t{n}")
            assert await tried(opener, "v", 2) == [True, False]
        assert await most_open(bus, "worker") == (6, 3)


async def test_a_limit_that_comes_changes_or_goes_while_workers_work_counts_what_is_open(tmp_path: Path) -> None:
    async with opening(tmp_path, UNLIMITED) as (bus, opener):
        async with working(bus, tmp_path, "w1") as one, working(bus, tmp_path, "w2") as two:
            await settled(one, two)

            async def have(policy: str) -> None:
                write_policy(tmp_path, policy)
                for each in (one, two):
                    assert await each.reload()

            assert all(await tried(opener, "t", 5))
            await have(POLICY)
            assert not await opener.attempt("u", "u-full")
            for n in range(3):
                await opener.finish(f"t{n}")
            assert await tried(opener, "v", 2) == [True, False]
            await have(POLICY.replace("max_open: 3", "max_open: 5"))
            assert await tried(opener, "w", 3) == [True, True, False]
            await have(UNLIMITED)  # which is counted all the same
            assert all(await tried(opener, "x", 4))
            await have(POLICY.replace("max_open: 3", "max_open: 9"))
            assert not await opener.attempt("y", "y-full")
            await opener.finish("x0")
            assert await opener.attempt("y", "y-again")
        assert await most_open(bus, "worker") == (9, 9)


async def test_what_workers_without_the_limit_opened_and_ended_counts_when_it_is_back(tmp_path: Path) -> None:
    async with opening(tmp_path) as (bus, opener):
        async with working(bus, tmp_path, "w1"):
            assert await tried(opener, "t", 4) == [True, True, True, False]
        write_policy(tmp_path, UNLIMITED)
        async with working(bus, tmp_path, "w2"):
            assert all(await tried(opener, "u", 4))
            for run in ("t0", "t1", "t2", "u0", "u1"):
                await opener.finish(run)
        write_policy(tmp_path, POLICY)
        async with working(bus, tmp_path, "w3"):
            assert await tried(opener, "v", 2) == [True, False]
        assert await most_open(bus, "worker") == (7, 3)


async def test_a_limit_that_comes_worker_by_worker_counts_what_those_without_it_opened_meanwhile(tmp_path: Path) -> None:
    """Nothing is said to those runs any more, and so nobody has their partitions."""
    async with opening(tmp_path, UNLIMITED) as (bus, opener):
        async with working(bus, tmp_path, "w1") as one:
            await opener.open("before")
            write_policy(tmp_path / "limited", POLICY)
            (tmp_path / "limited" / "keys").symlink_to(tmp_path / "keys")
            async with working(bus, tmp_path / "limited", "w2") as two:
                await settled(one, two)
                assert await two.writer.agents_counted() == {"worker"}
                opened = [n for n, may in enumerate(await tried(opener, "t", 16)) if may]
                assert len(opened) > 3  # at the one whose policy has no limit
                first = min(opened)
        write_policy(tmp_path, POLICY)
        async with working(bus, tmp_path, "w3"):
            assert not await opener.attempt(f"t{first}-next", "full")
            for n in opened[:-1]:
                await opener.finish(f"t{n}")
            assert await tried(opener, "u", 2) == [True, False]


async def test_a_ledger_that_is_lost_is_made_again_from_the_log(tmp_path: Path) -> None:
    async with opening(tmp_path) as (bus, opener):
        async with working(bus, tmp_path, "w1"):
            assert await tried(opener, "t", 4) == [True, True, True, False]
            await opener.finish("t1")
        async with bus.user("daemon") as client:
            purged = await client.request("$JS.API.STREAM.PURGE.GATED_SNAPSHOTS", b'{"filter": "gated.snapshot.open.>"}')
            assert b'"purged":1' in purged.data
        async with working(bus, tmp_path, "w2"):
            assert await tried(opener, "u", 2) == [True, False]
        assert await most_open(bus, "worker") == (3, 3)


async def test_who_has_no_limit_has_no_ledger(tmp_path: Path) -> None:
    async with opening(tmp_path, POLICY.replace("worker: {", "other: {").replace("mailer: {", "worker: {")) as (bus, opener):
        async with working(bus, tmp_path, "w1") as one:
            await opener.flood(["t1", "t2"])
            assert await one.writer.agents_counted() == {"other"}
            assert all(
                p.runs is None or p.runs.places is None or p.runs.places._tallies.keys() == {"other"} for p in one.partitions
            )
