"""Frameworks whose tools are plain functions (Pydantic AI, CrewAI, a loop of one's own): nothing of theirs is needed for them.

agent = Agent(model, tools=gated_functions(run, [look_up, refund]))

INVARIANT: a tool runs with what was asked. An argument that is no JSON (a Pydantic model, a date) is asked for as the JSON that
Pydantic makes of it, and made anew from the JSON that was decided: what a model leaves out of its JSON does not reach the tool.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from inspect import signature
from typing import Any, Final, get_origin, get_type_hints

from gated.client import sync
from gated.client.adapters import NOT_RUN, for_model
from gated.client.binding import apply, bind, name_of
from gated.client.run import Run, Wait

PLAIN: Final = (str, int, float, bool, type(None))


def gated_functions(
    run: Run | sync.Run, functions: Iterable[Callable[..., Any]], *, wait: Wait = False
) -> list[Callable[..., Any]]:
    """The functions behind the gate, with their names, parameters and docstrings; where one does not run, it returns why, in
    words for the model.

    With a run of `gated.client` they are async, with one of `gated.client.sync` they are not. A first parameter that is Pydantic
    AI's `RunContext` is the framework's to give, and not for the gate.
    Raises `TypeError` for what is no function, or cannot be guarded.
    """
    telling = _telling_now if isinstance(run, sync.Run) else _telling
    return [telling(function, _calling(run, function, wait)) for function in functions]


Calling = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def _telling(function: Callable[..., Any], calling: Calling) -> Callable[..., Any]:
    @wraps(function)
    async def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return await calling(args, kwargs)
        except NOT_RUN as error:
            return for_model(error)

    return told


def _telling_now(function: Callable[..., Any], calling: Calling) -> Callable[..., Any]:
    @wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return calling(args, kwargs)
        except NOT_RUN as error:
            return for_model(error)

    return told


def _calling(run: Run | sync.Run, function: Callable[..., Any], wait: Wait) -> Calling:
    """Ask for a call by its arguments, and make it; what of the frameworks stands before them is given to the function alone."""
    run.guard(function)  # raises for what cannot be
    hints = _hints(function)
    beside = 1 if _takes_context(function, hints) else 0

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = partial(function, *args[:beside])
        given = bind(own, args[beside:], kwargs)
        asked = {name: _asked(value, name in hints) for name, value in given.items()}
        anew = {name: hints[name] for name, value in given.items() if asked[name] is not value}

        def make(**decided: Any) -> Any:
            return apply(own, {name: _made(anew[name], value) if name in anew else value for name, value in decided.items()})

        return run.call(name_of(function), asked, make, wait=wait)

    return call


def _asked(value: Any, hinted: bool) -> Any:
    """As JSON where it can be made anew from it; else as it is, and the gate refuses what is no JSON."""
    pydantic = sys.modules.get("pydantic_core")
    if not hinted or pydantic is None or _is_json(value):
        return value
    try:
        return pydantic.to_jsonable_python(value)
    except ValueError:
        return value


def _is_json(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
        case list():
            return all(map(_is_json, value))
    return type(value) in PLAIN


def _made(hint: Any, value: Any) -> Any:
    from pydantic import TypeAdapter  # whoever gave what is no JSON has it

    return TypeAdapter(hint).validate_python(value)


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}  # nobody can tell, and the gate refuses what is no JSON


def _takes_context(function: Callable[..., Any], hints: Mapping[str, Any]) -> bool:
    framework = sys.modules.get("pydantic_ai")
    kind = hints.get(next(iter(signature(function).parameters), ""))
    return framework is not None and (get_origin(kind) or kind) is framework.RunContext
