"""A word that the SDK does not know is no allow: it cannot be read as a verdict, and what is no allow raises."""

from __future__ import annotations

import msgspec
import pytest

from gated.client.errors import AlreadyMade, Denied, Suspended, error_of
from gated.wire import Verdict

SAID = {
    "type": "verdict",
    "call": "c1",
    "args_sha256": "0" * 64,
    "execute": True,
    "policy": "0" * 64,
    "seq": 1,
    "at": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize("word", ["block", "ask", "ALLOW", "allow ", "permit", "", None, True, 1])
def test_a_verdict_with_another_word_cannot_be_read(word: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**SAID, "decision": word}, Verdict)


def test_every_word_has_its_exception_but_allow_runs() -> None:
    kinds = {"deny": Denied, "suspend": Suspended, "allow": AlreadyMade}
    for word, kind in kinds.items():
        assert type(error_of(msgspec.convert({**SAID, "decision": word}, Verdict))) is kind


def test_a_verdict_that_says_nothing_cannot_be_read() -> None:
    for missing in ("execute", "args_sha256", "call"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({key: value for key, value in {**SAID, "decision": "allow"}.items() if key != missing}, Verdict)
