"""Frameworks whose tools are plain functions (Pydantic AI, CrewAI, a loop of one's own): nothing of theirs is needed for them.

agent = Agent(model, tools=gated_functions(run, [look_up, refund]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from gated.client import sync
from gated.client.adapters import NOT_RUN, for_model
from gated.client.run import Run, Wait


def gated_functions(
    run: Run | sync.Run, functions: Iterable[Callable[..., Any]], *, wait: Wait = False
) -> list[Callable[..., Any]]:
    """The functions behind the gate, with their names, parameters and docstrings; where one does not run, it returns why, in
    words for the model.

    With a run of `gated.client` they are async, with one of `gated.client.sync` they are not.
    """
    telling = _telling_now if isinstance(run, sync.Run) else _telling
    return [telling(run.guard(function, wait=wait)) for function in functions]


def _telling(guarded: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(guarded)
    async def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return await guarded(*args, **kwargs)
        except NOT_RUN as error:
            return for_model(error)

    return told


def _telling_now(guarded: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(guarded)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return guarded(*args, **kwargs)
        except NOT_RUN as error:
            return for_model(error)

    return told
