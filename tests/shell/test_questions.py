"""The API is as strict as the bus is: what a question says and nobody reads is refused, not passed over."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from gated.cli.operator import Place, operate
from gated.errors import GatedError
from gated.ingress import Unreadable
from gated.wire import questions
from patience import PATIENCE
from shell.live import gate

REFUSED: list[tuple[str, bytes, str]] = [
    ("tickets.list", b'{"thread":"t1"}', "object contains unknown field `thread`; the question has no fields"),
    ("health", b'{"run":"r"}', "object contains unknown field `run`; the question has no fields"),
    ("tickets.page", b'{"behind":3}', "object contains unknown field `behind`; the question has `after`"),
    ("tickets.page", b'{"after":-1}', "expected `int` >= 0, at `after`; the question has `after`"),
    ("tickets.page", b'{"after":true}', "expected `int`, got `bool`, at `after`; the question has `after`"),
    ("tickets.show", b'{"tickets":["t"],"close":true}', "unknown field `close`; the question has `tickets`, `closed`"),
    ("tickets.show", b'{"tickets":["t"],"closed":1}', "expected `bool`, got `int`, at `closed`"),
    ("tickets.show", b"{}", "missing required field `tickets`"),
    ("runs.show", b'{"run":"r","thread":"a b"}', "an id is 1 to 128 of the characters A-Z a-z 0-9 _ -, at `thread`"),
    ("runs.show", b'{"run":"r","thread":"t","full":true}', "unknown field `full`; the question has `thread`, `run`"),
    ("policy.show", b'{"policy":5}', "expected `str | null`, got `int`, at `policy`"),
    ("policy.show", b'{"policy":"gated.>"}', "a digest is 64 of the characters 0-9 a-f, at `policy`"),
    ("can_i", b'{"run":"r","thread":"t","call":[]}', "unknown field `call`; the question has `thread`, `run`, `calls`"),
    ("log.read", b'{"after":0,"agent":"a"}', "unknown field `agent`; the question has `after`, `until`"),
    ("log.read", b'{"after":99999999999999999999}', "at `after`"),
    ("log.thread", b'{"thread":"t","until":3}', "unknown field `until`; the question has `thread`, `after`"),
    ("log.read", b'{"after":1,"after":2}', "duplicate key `after`"),
    ("log.read", b'{"after":NaN}', "JSON"),
    ("log.read", b"[]", "not a JSON object but `[]`"),
]


async def test_a_question_that_says_more_than_is_read_is_refused_with_what_it_may_say(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("operator", "local") as operator:
        for verb, said, why in REFUSED:
            answer = await operator.request(f"gated.api.{verb}", said, timeout=PATIENCE)
            assert answer.headers, (verb, said, answer.data)
            assert answer.headers["Nats-Service-Error-Code"] == "400", said
            assert why in answer.headers["Nats-Service-Error"], said
        for verb in ("health", "tickets.list", "tickets.page", "log.head", "log.read", "policy.show"):
            for said in (b"", b"{}"):
                assert not (await operator.request(f"gated.api.{verb}", said, timeout=PATIENCE)).headers
        missing = await operator.request("gated.api.runs.show", b'{"thread":"t","run":"r"}', timeout=PATIENCE)
        assert missing.headers is not None
        assert missing.headers["Nats-Service-Error-Code"] == "404"


async def test_an_operator_is_told_why_the_gate_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was told that there is no such thing, whatever the gate had said."""
    async with gate(tmp_path) as live:
        password = tmp_path / "password"
        password.write_text(live.bus.passwords["operator:local"])
        async with operate(Place("local", tmp_path, live.bus.url, password)) as operator:
            assert await operator.ask("runs.show", thread="t", run="r") is None
            with pytest.raises(typer.Exit) as ended:
                await operator.ask("runs.show", thread="a b", run="r")
            assert ended.value.exit_code == 1
    assert "the gate does not answer `runs.show`: an id is 1 to 128 of the characters" in capsys.readouterr().err


def test_every_verb_has_a_struct_that_takes_nothing_else() -> None:
    found: list[Any] = [
        kind for kind in vars(questions).values() if isinstance(kind, type) and kind.__module__ == questions.__name__
    ]
    assert len(found) == 9
    for kind in found:
        with pytest.raises(Unreadable, match=r"unknown field `x`|missing required field"):
            questions.read_question(kind, msgspec.json.encode({"x": 1}))
        assert issubclass(kind, msgspec.Struct)
        assert not issubclass(kind, GatedError)
