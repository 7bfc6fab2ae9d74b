"""Which recorded states are safe and which are not."""

from __future__ import annotations

import pytest

from core.acts import Acts
from gated.events import FinishRequested
from gated.learning.examples import Example, Signs, examples, features_of, split
from learning.runs import POLICY, abort, asked_of, begin, worked


def labelled(acts: Acts, *words: str) -> list[tuple[str, bool]]:
    asked, endings = asked_of(acts)
    return [(e.asked.action.tool, e.safe) for e in examples(asked, endings, Signs.read(words or ("denied", "failed")))]


@pytest.fixture
def acts() -> Acts:
    made = Acts(POLICY)
    begin(made, "good")
    assert [made.run(tool) for tool in ("search", "rm", "read")] == ["allow", "deny", "allow"]
    made.world.observe(FinishRequested(made.world.sender))
    begin(made, "cut", harm="yes")
    assert [made.run(tool) for tool in ("x", "y")] == ["allow", "allow"]
    abort(made)
    return made


def test_what_was_denied_is_unsafe_and_what_was_let_in_is_safe(acts: Acts) -> None:
    assert labelled(acts) == [("search", True), ("rm", False), ("read", True), ("x", True), ("y", True)]


@pytest.mark.parametrize("word", ["aborted", "label:harm=yes"])
def test_where_an_unsafe_run_ended_is_unsafe_and_the_way_there_is_nothing(acts: Acts, word: str) -> None:
    assert labelled(acts, word) == [("search", True), ("read", True), ("y", False)]


@pytest.mark.parametrize("word", ["label:harm=no", "label:other=yes", "failed"])
def test_other_signs_say_nothing(acts: Acts, word: str) -> None:
    assert all(safe for _, safe in labelled(acts, word))


def test_a_sign_that_means_nothing() -> None:
    with pytest.raises(ValueError, match="`dnied` is no sign of an unsafe state"):
        Signs.read(["dnied"])


def test_what_a_call_leads_to_holds_the_call(acts: Acts) -> None:
    asked, endings = asked_of(acts)
    first = examples(asked, endings, Signs())[0]
    assert dict(first.asked.state.run.counts) == {}
    assert dict(first.after.run.counts) == {"search": 1}
    assert first.after.view is not None
    assert first.after.view.recent[-1][:2] == ("search", "in_flight")


def found(runs: int) -> list[Example]:
    asked, endings = asked_of(worked(runs))
    return examples(asked, endings, Signs())


def test_no_run_is_in_both_parts() -> None:
    learning, holding = split(found(20), 0.25)
    assert {e.run for e in learning} & {e.run for e in holding} == set()
    assert len({e.run for e in holding}) == 5
    assert any(not e.safe for e in holding)


def test_the_split_does_not_depend_on_the_order() -> None:
    some = found(20)
    assert {e.run for e in split(some, 0.25)[1]} == {e.run for e in split(some[::-1], 0.25)[1]}


def test_features_are_those_named_or_those_of_the_tools() -> None:
    some = found(5)
    assert features_of(some, ["steps", "count.pay", "steps"]) == ("steps", "count.pay")
    assert set(features_of(some, [])) == {"steps", "in_flight", "cost_usd", "errors"} | {
        f"{kind}.{tool}" for kind in ("count", "recent") for tool in ("search", "read", "send_email")
    }
    with pytest.raises(ValueError, match="there is no feature `stps`"):
        features_of(some, ["stps"])
