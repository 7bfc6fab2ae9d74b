"""A probe knows of the one process that it asks: that it decides, that it runs, or neither, and why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from gated.shell import health_file, readiness
from gated.shell.readiness import OK, STALE, main, why_not
from gated.shell.supervisor import Supervisor
from patience import PATIENCE, until
from shell.live import Bus, gate, server, write_policy
from shell.test_supervisor import SLEEPS


def test_what_a_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "health"
    assert main([str(file)]) == 1
    assert "No such file" in capsys.readouterr().out
    file.write_text(f"{OK}\n")
    assert main([str(file)]) == 0
    assert capsys.readouterr().out == "ok\n"
    file.write_text("the log cannot be written: no space left\n")
    assert (main([str(file)]), main([str(file), "--alive"])) == (1, 0)
    assert capsys.readouterr().out == "the log cannot be written: no space left\nok\n"
    past = time.time() - STALE - 5
    os.utime(file, (past, past))
    assert (main([str(file)]), main(["--alive", str(file)])) == (1, 1)
    assert "no sign of life for 25s in" in capsys.readouterr().out
    file.write_text("")
    assert why_not(file).endswith("is empty")
    file.write_bytes(b"\xff")
    assert "cannot be read" in why_not(file)
    assert [main(words) for words in ([], ["--alive"], ["a", "b"], ["a", "--alive", "b"])] == [2, 2, 2, 2]


def test_a_probe_costs_next_to_nothing() -> None:
    """It is started every few seconds beside each worker."""
    others = "[name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names]"
    code = f"import sys; sys.path[:0] = {sys.path!r}; import gated.shell.readiness; print(len({others}))"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True)
    assert int(loaded.stdout) <= 5, loaded.stderr


async def test_a_gate_that_cannot_decide_is_alive_and_not_ready(tmp_path: Path) -> None:
    file = tmp_path / "health"
    async with gate(tmp_path) as live:
        assert live.daemon.why_not() == ""
        live.daemon.runs.health.why = "the log cannot be written"
        await health_file.write(file, live.daemon.why_not())
        assert (why_not(file), why_not(file, alive=True)) == ("the log cannot be written", "")
        live.daemon.runs.health.why = ""
        await live.daemon.receiver.client.close()
        assert live.daemon.why_not() == "the bus is away"


async def test_the_file_is_kept_fresh_and_goes_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_file, "EVERY", 0.01)
    file, why = tmp_path / "there" / "health", [""]
    file.parent.mkdir()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(health_file.keep, file, lambda: why[0])
        await until(lambda: file.exists() and why_not(file) == "")
        why[0] = "two\nlines"
        await until(lambda: why_not(file) == "two lines")
        file.parent.rename(tmp_path / "gone")  # as where a disk is full: the process goes on, and its file grows stale
        await anyio.sleep(0.1)
        (tmp_path / "gone").rename(file.parent)
        why[0] = ""
        await until(lambda: why_not(file) == "")
        tasks.cancel_scope.cancel()
    assert list(file.parent.iterdir()) == []


def serving(folder: Path, bus: Bus, file: Path) -> "subprocess.Popen[bytes]":
    write_policy(folder)
    told = {"GATED_NATS_URL": bus.url, "GATED_NATS_USER": "daemon", "GATED_NATS_PASSWORD": bus.passwords["daemon"]}
    command = [sys.executable, "-m", "gated", "serve", "--policy", str(folder / "policy.yaml"), "--log", str(folder / "serve.db")]
    with (folder / "serve.out").open("wb") as out:
        return subprocess.Popen([*command, "--health-file", str(file)], env={**os.environ, **told}, stdout=out, stderr=out)


async def test_a_gate_that_stands_still_gives_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "STALE", 4.0)
    file = tmp_path / "health"
    async with server(tmp_path) as (_, bus):
        made = serving(tmp_path, bus, file)
        try:
            await until(lambda: why_not(file) == "")
            made.send_signal(signal.SIGSTOP)
            await until(lambda: "no sign of life" in why_not(file, alive=True))
            made.send_signal(signal.SIGCONT)
            await until(lambda: why_not(file) == "")
            made.terminate()
            assert await anyio.to_thread.run_sync(made.wait, PATIENCE) == 0
            assert not file.exists()
        finally:
            made.kill()


async def test_a_gate_whose_file_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    async with server(tmp_path) as (_, bus):
        made = serving(tmp_path, bus, tmp_path / "nowhere" / "health")
        try:
            assert await anyio.to_thread.run_sync(made.wait, PATIENCE) == 2
        finally:
            made.kill()
    assert "cannot write the health file" in (tmp_path / "serve.out").read_text()


async def test_several_workers_are_ready_where_all_are(tmp_path: Path) -> None:
    file = tmp_path / "health"
    workers = Supervisor(SLEEPS, "w", 2, file)
    for name in ("w-1", "w-2"):
        assert "w-1: nothing works here yet" in workers.why_not() or name == "w-2"
        await health_file.write(tmp_path / f"health.{name}", "")
    assert workers.why_not() == ""
    await health_file.write(tmp_path / "health.w-2", "the bus is away")
    assert workers.why_not() == "w-2: the bus is away"
    command = (sys.executable, "-c", "import sys, time; open(sys.argv[4], 'w').write('ok'); time.sleep(60)")
    workers = Supervisor(command, "v", 2, file)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workers.run)
        await until(lambda: why_not(file) == "")
        os.kill(os.getpid(), signal.SIGTERM)
    assert not file.exists()
