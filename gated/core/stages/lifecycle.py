"""lifecycle: who may speak for a run, and whether the run still takes calls. It cannot be switched off or observed away.

Codes: `lifecycle.not_thread_owner` `not_run_owner` `run_not_open` `run_exists` `run_completed` `run_failed`
`already_settled` `parent_thread` `not_outcome_source` `in_flight_limit` `limit`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from gated import strict_json

STAGE: Final = "lifecycle"


class RunsEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`runs:` of an agent: who opens its runs, and how many of them may be open at a time."""

    opened_by: Literal["agent", "operator"] = "agent"
    max_open: Annotated[int, Meta(ge=1)] | None = None


class LimitsEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`limits:` of the policy: the caps on what an agent can make grow."""

    max_instances: Annotated[int, Meta(ge=1)] = 10_000
    max_in_flight: Annotated[int, Meta(ge=1)] = 100
    max_calls: Annotated[int, Meta(ge=1)] = 100_000
    max_refusals: Annotated[int, Meta(ge=1)] = 100
    max_payload_bytes: Annotated[int, Meta(ge=1024, le=1_048_576)] = 1_048_576
    max_depth: Annotated[int, Meta(ge=1, le=64)] = 64
    max_values: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    max_key_bytes: Annotated[int, Meta(ge=1, le=1024)] = 1024

    @property
    def of_messages(self) -> strict_json.Limits:
        """What one message may hold."""
        return strict_json.Limits(self.max_payload_bytes, self.max_depth, self.max_values, self.max_key_bytes)


def ended_reason(tool: str, end: str, reason: str) -> tuple[str, str]:
    """Code and text of the denial of a call that comes after the end of its run."""
    if end == "failed":
        return "lifecycle.run_failed", f"Cannot call {tool}: agent run has failed: {reason}"
    text = f"Cannot call {tool}: agent run is already completed"
    return "lifecycle.run_completed", f"{text}: {reason}" if end == "aborted" and reason else text
