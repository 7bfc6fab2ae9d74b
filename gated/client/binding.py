"""A function's arguments as a call's arguments, and back: one JSON object that a policy can speak of by name.

Positional arguments take their parameters' names and defaults are filled in, so that what a rule looks for is always there.
Surplus positional arguments are a list under the name of the `*` parameter, surplus keywords stand beside the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from inspect import BoundArguments, Parameter, isasyncgenfunction, isgeneratorfunction, signature
from typing import Any


def guardable(function: Callable[..., Any]) -> None:
    """Raises `TypeError` for what is no function, and for a generator: its body runs after the call was reported as done."""
    if not callable(function):
        raise TypeError(f"a `{type(function).__name__}` is no function: give the function that the tool was made of")
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        raise TypeError(f"`{name_of(function)}` is a generator: guard the function that consumes it")


def finished(tool: str, result: Any) -> None:
    """Raises `TypeError` for a result whose work is still to be done: it would be reported as done, and done unseen."""
    if isinstance(result, Awaitable):
        if isinstance(result, Coroutine):
            result.close()
        raise TypeError(f"`{tool}` returned what is still to be awaited: a run of `gated.client` awaits an async function")
    if isinstance(result, Generator | AsyncGenerator):
        raise TypeError(f"`{tool}` returned a generator: guard the function that consumes it")


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "tool"))


def bind(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments. Raises `TypeError` where the function does not take these."""
    known = signature(function)
    bound = known.bind(*args, **kwargs)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = known.parameters[name].kind
        if kind is Parameter.VAR_KEYWORD:
            if taken := sorted(value.keys() & known.parameters.keys()):
                raise TypeError(f"the keyword `{taken[0]}` has the name of another parameter: a policy could not tell them apart")
            found.update(value)
        else:
            found[name] = list(value) if kind is Parameter.VAR_POSITIONAL else value
    return found


def apply(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call the function with a call's arguments. Raises `TypeError` where it does not take these."""
    known, rest = signature(function), dict(arguments)
    bound: OrderedDict[str, Any] = OrderedDict()
    left_out: list[str] = []
    for name, parameter in known.parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            bound[name], rest = rest, {}
        elif name in rest:
            bound[name] = rest.pop(name)
            if parameter.kind is Parameter.VAR_POSITIONAL:
                _surplus(function, name, bound[name], left_out)
        else:
            left_out.append(name)
    if rest:
        raise TypeError(f"`{name_of(function)}` takes no argument `{min(rest)}`")
    whole = BoundArguments(known, bound)
    return function(*whole.args, **whole.kwargs)


def _surplus(function: Callable[..., Any], name: str, value: Any, left_out: Sequence[str]) -> None:
    if not isinstance(value, list | tuple):
        raise TypeError(f"`{name}` of `{name_of(function)}` must be a list")
    if value and left_out:
        raise TypeError(f"`{name_of(function)}` is missing `{left_out[0]}`, which stands before `{name}`")
