"""A log as CloudEvents 1.0, in their JSON format: one event a decision, for pipelines that speak it.

`type` is `io.gated.` and the kind of the decision, `source` the thread's place in the log, `subject` the run; `id` is unique in
the source. The hash of the record goes along as an extension, so that an event can be traced to what was sealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import to_builtins

from gated.events import CallDecided, Record, encode, unseal
from gated.units import rfc3339

SPEC: Final = "1.0"
TYPE: Final = "io.gated."


def cloud_events(record: Record, origin: str = "gated") -> Iterator[dict[str, Any]]:
    """The events of a record, in the order of its decisions. `origin` names the log, a URI reference."""
    body = unseal(record)
    for index, decision in enumerate(body.decisions):
        data = to_builtins(decision)
        event: dict[str, Any] = {
            "specversion": SPEC,
            "id": f"{body.seq}.{index}",
            "source": f"/{origin}/threads/{body.thread}",
            "type": TYPE + data.pop("kind"),
            "subject": body.run,
            "time": rfc3339(body.at),
            "datacontenttype": "application/json",
            "gatedby": str(body.observation.by),
            "gatedpolicy": body.policy,
            "gatedhash": record.hash,
            "data": data,
        }
        if isinstance(decision, CallDecided):
            event["gateddecision"] = decision.decision
        yield event


def lines(record: Record, origin: str = "gated") -> Iterator[bytes]:
    """The events as lines of JSON."""
    for event in cloud_events(record, origin):
        yield encode(event) + b"\n"
