"""Open pages that hear of changes, and pages that take nothing any more."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gated.console import hub as hubs
from gated.console.board import Change
from gated.console.hub import Hub
from gated.console.people import Person


class Nothing:
    """A board and a list of runs on which there is nothing."""

    def visible(self, person: Person) -> list[Any]:
        return []

    def watched(self) -> None:
        pass


async def test_a_page_that_takes_nothing_any_more_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: what it did not take was kept for it for as long as its connection seemed to stand."""
    monkeypatch.setattr(hubs, "WAITING", 5)
    hub, nothing = Hub(), Nothing()
    events = hub.listen(Person("ana"), nothing, nothing, lambda: True)  # type: ignore[arg-type]
    assert (await anext(events)).startswith("event: hello")
    for number in range(6):
        assert hub.busy()
        hub.ticket(Change(f"t{number}", "t", "r", "pending", None))
    assert not hub.busy()
    with anyio.fail_after(5):
        assert [text async for text in events] == []
