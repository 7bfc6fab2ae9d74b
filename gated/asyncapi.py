"""The bus contract as an AsyncAPI 3 document, made from the message structs themselves so that it cannot drift from them."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from gated import wire

_IN: Final = {
    "agent": "what an agent says for its run",
    "approver": "answers to tickets",
    "operator": "opening, binding and ending runs",
    "runner": "outcomes from whoever runs the tools",
}


def document(prefix: str = wire.PREFIX) -> dict[str, Any]:
    """The whole contract: channels are subjects, with their parameters; every message has its JSON Schema."""
    inbound, outbound = get_args(wire.Inbound), get_args(wire.Outbound)
    kinds: list[type[Struct]] = [*inbound, *outbound, wire.TicketMessage]
    _, schemas = msgspec.json.schema_components([*kinds, wire.WantedCall], ref_template="#/components/schemas/{name}")
    channels: dict[str, Any] = {
        f"in_{role}": _channel(f"{prefix}.in.{{thread}}.{{run}}.{role}.{{name}}", wire.SENDERS[role], text)
        for role, text in _IN.items()
    }
    channels["out"] = _channel(f"{prefix}.out.{{thread}}.{{run}}.agent.{{name}}", outbound, "the gate's answers to an agent")
    for role in ("approver", "operator", "runner"):
        address, told = f"{prefix}.out.{{thread}}.{{run}}.{role}.{{name}}", (wire.Refusal, wire.TicketMessage)
        channels[f"out_{role}"] = _channel(
            address, told, f"why a message of the {role} was not taken, or what it was answered before"
        )
    channels["tickets"] = _channel(f"{prefix}.tickets.{{thread}}.{{run}}", (wire.TicketMessage,), "the life of tickets")
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "gated", "version": "1", "description": "Tool intents in, verdicts out. Ids are [A-Za-z0-9_-]{1,128}."},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {
            name: {"action": "receive" if name.startswith("in_") else "send", "channel": {"$ref": f"#/channels/{name}"}}
            for name in channels
        },
        "components": {
            "messages": {kind.__name__: _message(kind) for kind in kinds},
            "schemas": schemas,
        },
    }


def _channel(address: str, kinds: tuple[type[Struct], ...], text: str) -> dict[str, Any]:
    names = [part[1:-1] for part in address.split(".") if part.startswith("{")]
    return {
        "address": address,
        "description": text,
        "parameters": {name: {"description": f"the {name}'s id"} for name in names},
        "messages": {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds},
    }


def _message(kind: type[Struct]) -> dict[str, Any]:
    summary = (kind.__doc__ or "").strip().splitlines()
    return {
        "name": str(kind.__struct_config__.tag),
        "summary": summary[0] if summary else "",
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }
