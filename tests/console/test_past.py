"""Lists and search know the whole log, whichever end of it was read first; nobody finds in them what is not theirs to see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.world import World, world
from gated.console.gleaning import Stretch
from gated.console.index import Eyes, Index
from gated.console.past import Past
from gated.console.people import Person
from gated.console.threads import Records
from gated.events import Body
from patience import blocking_until

ALL = Eyes("audrey", auditor=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gate with tickets that were approved, rejected, edited, cancelled and are open, of two agents."""
    with world(tmp_path_factory.mktemp("world")) as running:
        with running.visitor("ana") as ana, running.visitor("bob") as bob, running.visitor("eve") as eve:
            for number, decision in enumerate(("approve", "reject", "approve")):
                _, asked = running.ask("payer", "refund", {"customer": f"old-{number}", "amount": 10 + number}, f"run{number}")
                ana.answer(running.path(asked.ticket), decision, note=f"note {number}")
            _, asked = running.ask("writer", "wire", {"to": "kim"}, "wired")
            ana.answer(running.path(asked.ticket), "approve")
            bob.answer(running.path(asked.ticket), "approve")
            _, asked = running.ask("writer", "deploy", {"what": "secret"}, "deployed")
            eve.answer(running.path(asked.ticket), "approve")
        running.ask("payer", "refund", {"customer": "open", "amount": 9}, "open")
        yield running


@pytest.fixture(scope="module")
def bodies(made: World) -> list[Body]:
    page = made.portal.call(lambda: made.desk.lines.ask("log.read", Records, after=0))
    assert page.complete
    return [stored.body for stored in page.records]


def everything(index: Index, eyes: Eyes = ALL) -> Any:
    return index.runs(eyes, 99), index.ended(eyes, 99, ()), sorted(index.pairs.values(), key=repr)


def taken(*stretches: tuple[list[Body], bool]) -> Index:
    index = Index()
    for records, earlier in stretches:
        index.take(Stretch(records), earlier=earlier)
    return index


@given(data=st.data())
def test_wherever_the_log_is_cut_and_whichever_side_is_read_first_the_lists_are_the_same(bodies: list[Body], data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(bodies)), max_size=6)))
    parts = [bodies[start:end] for start, end in zip([0, *cuts], [*cuts, len(bodies)], strict=True)]
    first = data.draw(st.integers(0, len(parts) - 1))
    later, before = [(part, False) for part in parts[first:]], [(part, True) for part in reversed(parts[:first])]
    mixed, one = taken(*later, *before), taken((bodies, False))
    assert everything(mixed)[:2] == everything(one)[:2]
    assert set(map(repr, one.pairs.values())) <= set(map(repr, mixed.pairs.values()))
    for index in (mixed, one):
        index.close()


def test_an_interrupted_stretch_is_not_taken_at_all(bodies: list[Body], monkeypatch: pytest.MonkeyPatch) -> None:
    index = taken((bodies[:4], False))
    before = everything(index)[:2]
    with monkeypatch.context() as broken:
        broken.setattr("gated.console.index._ticket_words", lambda line: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.take(Stretch(bodies[4:]))
    assert everything(index)[:2] == before
    index.take(Stretch(bodies[4:]))
    assert everything(index)[:2] == everything(taken((bodies, False)))[:2]


def test_the_whole_log_is_listed_and_found_though_its_end_is_read_first(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a person: only the last 10,000 records were known, and nothing said so."""
    monkeypatch.setattr("gated.console.past.FIRST", 3)
    monkeypatch.setattr("gated.console.past.STRIDE", 2)
    monkeypatch.setattr("gated.console.past.OFTEN", 0.05)
    past, ana = Past(made.desk.lines, made.desk.policies, lambda line: None, lambda: False), Person("ana")

    async def found(*words: str) -> tuple[list[str], list[str]]:
        runs, ended = await past.runs(ana, 9, words=words), await past.ended(ana, 9, words)
        return [line.run for line in runs], [line.run for line in ended]

    made.portal.call(past.fresh)
    assert not past.whole
    assert made.portal.call(found, "old-0") == ([], [])
    task = made.portal.start_task_soon(past.run)
    blocking_until(lambda: past.whole)
    task.cancel()
    assert made.portal.call(found, "OLD-0", "refund") == ([], ["run0"])
    assert made.portal.call(found, "run0") == (["run0"], ["run0"])
    assert made.portal.call(found, "payer", "rejected") == ([], ["run1"])
    assert [line.run for line in made.portal.call(past.runs, ana, 9)] == ["open", "wired", "run2", "run1", "run0"]
    assert made.portal.call(found, "secret") == ([], [])
    made.portal.call(past.close)


def test_pages_say_that_older_records_are_still_being_read(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with made.visitor("ana") as ana:
        assert "still being read" not in ana.get("/runs").text
        monkeypatch.setattr(Past, "whole", False)
        assert "Older records are still being read: back to 20" in ana.get("/runs").text
        answer = ana.http.post("/search", data={"csrf": ana.token(), "text": "nowhere"})
        assert "What is older is not listed or found yet." in answer.text


def test_nobody_finds_what_is_not_theirs_to_see(made: World) -> None:
    with made.visitor("ana") as ana, made.visitor("eve") as eve, made.visitor("audrey") as audrey:
        for visitor, sees in ((ana, False), (eve, True), (audrey, True)):
            answer = visitor.http.post("/search", data={"csrf": visitor.token(), "text": "secret"})
            assert ("deploy" in answer.text) is sees
            assert ("deployed" in visitor.get("/runs").text) is sees
            assert ("deploy" in visitor.get("/ended").text) is sees
            assert (visitor.get("/runs/deployed/deployed").status_code == 200) is sees


def test_one_pages_back_through_the_tickets_that_ended(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gated.console.tickets_pages.WINDOW", 2)
    with made.visitor("audrey") as audrey:
        assert 'href="/ended"' in audrey.get("/").text
        texts = [audrey.get(f"/ended?page={number}").text for number in (1, 2, 3)]
        assert ['rel="next"' in text for text in texts] == [True, True, False]
        pages = [re.findall(r'href="/tickets/[^"]+/(t[0-9a-f.]+)"', text) for text in texts]
        every = made.portal.call(made.desk.past.ended, Person("audrey", auditor=True), 99)
        assert [ticket for page in pages for ticket in page] == [line.ticket for line in every]
        assert [len(page) for page in pages] == [2, 2, 1]
        assert "answered by ana, bob" in "".join(texts)
        beyond = audrey.get("/ended?page=9").text
        assert "The list ends before this page." in beyond
        assert 'rel="prev"' in beyond


def test_a_ticket_that_ended_is_found_by_its_id_alone(made: World) -> None:
    (ended,) = made.portal.call(made.desk.past.ended, Person("audrey", auditor=True), 9, ["secret"])
    made.desk.board._closed.pop(ended.ticket)
    with made.visitor("ana") as ana, made.visitor("eve") as eve:
        assert ana.get(f"/tickets/{ended.ticket}").status_code == 404
        assert eve.get(f"/tickets/{ended.ticket}").headers["location"] == f"/tickets/deployed/deployed/{ended.ticket}"


def test_what_follows_a_log_that_became_another_is_that_one(made: World, bodies: list[Body]) -> None:
    past = Past(made.desk.lines, made.desk.policies, lambda line: None, lambda: False)
    made.portal.call(past.fresh)
    past._last += 1000  # as if the log had been longer
    past._read_at = 0
    made.portal.call(past.fresh)
    assert past._last == len(bodies)
    counted = {line.run: line.suspended for line in made.portal.call(past.runs, Person("a", auditor=True), 9)}
    assert counted["run0"] == 1
    made.portal.call(past.close)
