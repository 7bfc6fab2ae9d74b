"""The judge by HTTP: a real server, and every way in which it may fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import anyio
import pytest

from gated.core.policy import load_text
from gated.core.stages.semantic import JudgeEntry, Seen
from gated.core.turn import Unscored
from gated.events import CallId, IntentsReceived, Score, Sender, Wanted
from gated.shell.detectors.judge import HttpJudge, JudgeMissing, NoAnswer, Question, judge_of
from gated.shell.scoring import About, Scorer
from patience import PATIENCE

QUESTION = Question("t", "r", "c", "a", "pay", {"amount": 9}, "Pay the bills")


@contextmanager
def served(status: int, body: bytes, wait: Event | None = None, drip: bool = False) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives one answer; its address and what it was sent."""
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.headers.get("Authorization"), json.loads(sent)))
            if wait is not None:
                wait.wait(2 * PATIENCE)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            try:
                for part in (body[:5], body[5:]):
                    self.wfile.write(part)
                    self.wfile.flush()
                    if drip and wait is not None:
                        wait.wait(2 * PATIENCE)
            except (BrokenPipeError, ConnectionResetError):
                pass

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Thread(target=server.serve_forever, daemon=True)
    running.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/judge", heard
    finally:
        if wait is not None:
            wait.set()
        server.shutdown()
        server.server_close()
        running.join(5)


async def asked(url: str, token: str | None = None, seconds: float = PATIENCE) -> Score:
    judge = HttpJudge(url, token)
    try:
        return await judge.ask(QUESTION, seconds)
    finally:
        await judge.close()


async def test_its_score_and_reason_are_read_and_it_is_told_of_the_call() -> None:
    with served(200, b'{"score": 0.42, "reason": "hm\\u0007"}') as (url, heard):
        assert await asked(url, "s3cret") == Score(420_000, "hm\\x07")
    assert heard == [
        (
            "Bearer s3cret",
            {
                "v": 1,
                "thread": "t",
                "run": "r",
                "call": "c",
                "agent": "a",
                "tool": "pay",
                "args": {"amount": 9},
                "task": "Pay the bills",
            },
        )
    ]


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, b'{"score": 0}', "it answers with status 500"),
        (201, b'{"score": 0}', "it answers with status 201"),
        (302, b'{"score": 0}', "it answers with status 302"),
        (200, b'{"score": 0, "error": "down"}', "makes no sense"),
        (200, b"<html>", "makes no sense"),
        (200, b'{"score": 0, "reason": "' + b"x" * 200_000 + b'"}', "at most 65536 are read"),
    ],
)
async def test_any_other_answer_is_none(status: int, body: bytes, why: str) -> None:
    with served(status, body) as (url, _), pytest.raises(NoAnswer, match=why):
        await asked(url)


async def test_nobody_there() -> None:
    with served(200, b"") as (url, _):
        pass
    with pytest.raises(NoAnswer, match="it cannot be asked"):
        await asked(url)


@pytest.mark.parametrize("drip", [False, True])
async def test_too_late_is_unavailable_within_the_timeout(drip: bool) -> None:
    policy = load_text("version: 1\nagents: {a: {}}\nsemantic: {judge: {http: 'http://x/'}, timeout: 1s}\n", "p.yaml")
    rules = policy.semantic
    assert rules is not None
    with served(200, b'{"score": 0}', Event(), drip) as (url, _):
        scorer = Scorer(b"k" * 32, lambda entry: HttpJudge(url, None))
        about = About("t", "r", "a", None, rules, Seen(), str)
        said = IntentsReceived(Sender("agent", "a"), (Wanted(CallId("c"), "pay"),))
        with anyio.fail_after(PATIENCE):
            answered = await scorer.answered(said, about, [Unscored(CallId("c"), "pay", {}, ("judge",))])
        await scorer.close()
    scores = answered.calls[0].scores
    assert scores is not None
    assert scores["judge"].value is None


def test_a_token_is_read_from_the_environment_and_its_absence_is_said() -> None:
    entry = JudgeEntry(http="https://judge.example/", token_from="JUDGE_TOKEN")
    with pytest.raises(JudgeMissing, match="`JUDGE_TOKEN`, which is not set"):
        judge_of(entry, None, {})  # type: ignore[arg-type]
