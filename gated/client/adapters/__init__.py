"""Frameworks for agents, one file each, behind the gate: their tools ask before they run, and report how they ended.

What a model is told where a tool does not run is said here, in one place. A framework's own package is an extra of this one.
"""

from __future__ import annotations

import json
from typing import Any, Final

from gated import ingress
from gated.client.errors import AlreadyMade, Denied, GateError, GateUnavailable, Refused, Suspended

NOT_RUN: Final = (Denied, Suspended, AlreadyMade, Refused, GateUnavailable)  # why a tool did not run


def for_model(error: GateError) -> str:
    """Why a tool did not run, so that a model can do something sensible next."""
    match error:
        case Denied():
            return f"The call was denied and did not run: {error.verdict.reason}"
        case Suspended():
            return f"The call did not run: it waits for an approval (ticket {error.verdict.ticket}). {error.verdict.reason}"
        case AlreadyMade():
            return "The call was made before and does not run again."
    return f"The call did not run: {error}"


def text_of(result: Any) -> str:
    """A person's answer in the place of a tool's, as text."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def call_id(given: str | None) -> str | None:
    """A provider's id of a call where it can be one here. The same call again is answered with its recorded verdict then."""
    return given if ingress.is_id(given) else None
