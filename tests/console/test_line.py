"""The console's own line: what it cannot read is no answer, and no end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gated.console.line import Lines, NoAnswer, Passwords
from gated.console.threads import Records


async def test_an_answer_of_another_version_is_no_answer() -> None:
    """Found by reading: it ended the console."""
    lines, own = Lines(Passwords(Path("bus.json"))), SimpleNamespace(is_over=False)

    async def request(subject: str, data: bytes, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(headers=None, data=b'{"records": [{"hash": "x", "body": {"kind": "of tomorrow"}}], "after": 1}')

    own.request = request
    lines._own = own  # type: ignore[assignment]
    with pytest.raises(NoAnswer, match="is not of this version"):
        await lines.ask("log.read", Records, after=0)


@pytest.mark.parametrize(("url", "words"), [(None, "`gated up` writes it"), ("nats://127.0.0.1:4222", "--bus names it")])
async def test_a_file_of_bus_passwords_that_is_missing_is_said_as_who_wants_it(
    tmp_path: Path, url: str | None, words: str
) -> None:
    with pytest.raises(NoAnswer, match=words):
        await Passwords(tmp_path / "bus.json", url).options("console")
