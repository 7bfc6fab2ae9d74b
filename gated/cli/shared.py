"""Options that several commands share: listed once, and one parameter of each command that has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from gated.shell.login import login
from gated.wire import PREFIX

Command = Callable[..., None]


def taking(makes: Callable[..., Any]) -> Callable[[Command], Command]:
    """Gives a command the options of `makes`, in the place of its parameter of the type that `makes` returns: what it gets
    there is what they make."""
    shared = signature(makes, eval_str=True)

    def decorate(command: Command) -> Command:
        own = signature(command, eval_str=True).parameters.values()
        (made,) = (parameter.name for parameter in own if parameter.annotation is shared.return_annotation)
        listed: list[Parameter] = []
        for parameter in own:
            listed += shared.parameters.values() if parameter.name == made else [parameter]

        @wraps(command)
        def whole(**given: Any) -> None:
            options = {name: given.pop(name) for name in shared.parameters}
            command(**given, **{made: makes(**options)})

        whole.__signature__ = shared.replace(  # type: ignore[attr-defined]  # what the command line is made from
            parameters=[parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in listed], return_annotation=None
        )
        whole.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
        return whole

    return decorate


def of_environment(nats: str | None) -> dict[str, Any]:
    """What the environment says of a server of one's own: as whom, whom to trust, and the first token of its gate's subjects."""
    if not nats:
        return {}
    told = login(nats).credentials
    del told["inbox_prefix"]  # of the agent, whoever logs in
    return {**told, "prefix": os.environ.get("GATED_PREFIX", PREFIX)}
