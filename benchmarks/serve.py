"""A daemon for the benchmarks, in a process of its own: `serve.py FOLDER gate|null POLICY`. It ends when its input closes."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from benchmarks import null_gate
from gated.core import decide
from gated.core.approval_rules import people_of
from gated.shell.daemon import Settings, daemon, rarely_collect
from gated.shell.embedded import embedded_server
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_config import UserRole, inbox_prefix
from gated.shell.policies import read_policy


async def main(folder: Path, kind: str, path: Path) -> None:
    policy = read_policy(path)
    rarely_collect()
    event_log = await open_for_writing(folder / "log.db")
    users: list[tuple[UserRole, str]] = [("agent", name) for name in policy.agents]
    users += [("approver", name) for name in people_of(policy.approvals)]
    async with embedded_server(folder / "bus", users) as server:
        credentials = {"user": "daemon", "password": server.bus.users["daemon"], "inbox_prefix": inbox_prefix("daemon", "")}
        chosen = null_gate.record if kind == "null" else decide.record
        async with daemon(Settings(server.bus.url, path, credentials, decide=chosen), event_log, policy):
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)
    await event_log.close()


if __name__ == "__main__":
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.install()
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
