"""Of a thread that grows long people are warned, before it is a trouble."""

from pathlib import Path

import pytest
import structlog

from gated.shell import threads
from shell.live import agent, ears, gate, intents, tell


async def test_of_a_thread_that_grows_long_people_are_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SNAPSHOT", 2)
    monkeypatch.setattr(threads, "LONG", 10)
    with structlog.testing.capture_logs() as lines:
        async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker:
            heard = await ears(worker, "worker")
            for number in range(25):
                await tell(worker, agent("worker"), "r", intents((f"c{number}", "read", {})), thread="t")
                await heard.count(number + 1)
    warned = [line for line in lines if line["event"].startswith("a thread grows long")]
    assert [(line["log_level"], line["thread"], line["records"] // 10) for line in warned] == [
        ("warning", "t", 1),
        ("warning", "t", 2),
    ]
