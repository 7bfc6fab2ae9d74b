"""Frameworks whose tools are plain functions (Pydantic AI, CrewAI, a loop of one's own): nothing of theirs is needed for them.

agent = Agent(model, tools=gated_functions(run, [look_up, refund]))
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import signature
from typing import Any, get_origin, get_type_hints

from gated.client import sync
from gated.client.adapters import NOT_RUN, for_model
from gated.client.binding import name_of
from gated.client.run import Run, Wait


def gated_functions(
    run: Run | sync.Run, functions: Iterable[Callable[..., Any]], *, wait: Wait = False
) -> list[Callable[..., Any]]:
    """The functions behind the gate, with their names, parameters and docstrings; where one does not run, it returns why, in
    words for the model.

    With a run of `gated.client` they are async, with one of `gated.client.sync` they are not. A first parameter that is Pydantic
    AI's `RunContext` is the framework's to give, and not for the gate.
    Raises `TypeError` for what is no function.
    """
    telling = _telling_now if isinstance(run, sync.Run) else _telling
    return [telling(function, _guarding(run, function, wait)) for function in functions]


Guarding = Callable[[tuple[Any, ...]], tuple[Callable[..., Any], tuple[Any, ...]]]


def _telling(function: Callable[..., Any], guarding: Guarding) -> Callable[..., Any]:
    @wraps(function)
    async def told(*args: Any, **kwargs: Any) -> Any:
        guarded, rest = guarding(args)
        try:
            return await guarded(*rest, **kwargs)
        except NOT_RUN as error:
            return for_model(error)

    return told


def _telling_now(function: Callable[..., Any], guarding: Guarding) -> Callable[..., Any]:
    @wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        guarded, rest = guarding(args)
        try:
            return guarded(*rest, **kwargs)
        except NOT_RUN as error:
            return for_model(error)

    return told


def _guarding(run: Run | sync.Run, function: Callable[..., Any], wait: Wait) -> Guarding:
    """For a call's positional arguments: the guarded function and those that it still takes."""
    guarded = run.guard(function, wait=wait)
    if not _takes_context(function):
        return lambda args: (guarded, args)
    name = name_of(function)
    return lambda args: (run.guard(partial(function, *args[:1]), name, wait=wait), args[1:])


def _takes_context(function: Callable[..., Any]) -> bool:
    framework = sys.modules.get("pydantic_ai")
    first = next(iter(signature(function).parameters), None)
    if framework is None or first is None:
        return False
    try:
        kind = get_type_hints(function).get(first)
    except NameError:
        return False  # nobody can tell; given such a parameter, the gate refuses what is not JSON
    return (get_origin(kind) or kind) is framework.RunContext
