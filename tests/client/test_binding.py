"""A function's arguments as a call's arguments and back: nothing shifts, nothing is lost, nothing is hidden from a policy."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.client.binding import apply, bind


def plain(a: int, b: int = 2, *, c: int = 3) -> Any:
    return (a, b, c)


def surplus(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
    return (a, b, rest, c, more)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "bound"),
    [
        (plain, (1,), {}, {"a": 1, "b": 2, "c": 3}),
        (plain, (), {"b": 5, "a": 4}, {"a": 4, "b": 5, "c": 3}),
        (surplus, (1,), {}, {"a": 1, "b": 2, "rest": [], "c": 3}),
        (surplus, (1, 2, 3, 4), {"d": 5}, {"a": 1, "b": 2, "rest": [3, 4], "c": 3, "d": 5}),
    ],
)
def test_what_is_bound_calls_the_function_as_it_was_called(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bound: dict[str, Any]
) -> None:
    assert bind(function, args, kwargs) == bound
    assert apply(function, bound) == function(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "edited", "why"),
    [
        (plain, {"a": 1, "d": 2}, "takes no argument `d`"),
        (plain, {"b": 1}, "missing"),
        (surplus, {"b": 1}, "missing"),
        (surplus, {"a": 1, "rest": "abc"}, "`rest` of `surplus` must be a list"),
        (surplus, {"a": 1, "rest": [3]}, "missing `b`"),
    ],
)
def test_an_edit_that_the_function_does_not_take_is_no_call(
    function: Callable[..., Any], edited: dict[str, Any], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        apply(function, edited)


@given(
    args=st.lists(st.integers(), max_size=5),
    kwargs=st.dictionaries(st.sampled_from(["a", "b", "c", "d", "rest", "more"]), st.integers(), max_size=4),
)
@pytest.mark.parametrize("function", [plain, surplus])
def test_whatever_a_function_takes_comes_back_as_it_was(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    try:
        wanted = function(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            bind(function, args, kwargs)
        return
    if function is surplus and kwargs.keys() & {"a", "rest", "more"}:
        with pytest.raises(TypeError, match="has the name of another parameter"):
            bind(function, args, kwargs)
    else:
        assert apply(function, bind(function, args, kwargs)) == wanted


def test_a_keyword_cannot_hide_behind_another_parameter() -> None:
    with pytest.raises(TypeError, match="has the name of another parameter"):
        bind(surplus, (1,), {"rest": 5})
    with pytest.raises(TypeError, match="has the name of another parameter"):
        bind(surplus, (1,), {"a": 5})
