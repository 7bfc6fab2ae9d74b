"""ceilings: how often a run may ask and how often in a row it may fail, and what its arguments must look like.

`hop_count` counts every call with a verdict of its own, `retry_count` consecutive tool errors; both ceilings use `>=`.
Arguments that do not fit the tool's JSON Schema (2020-12, no remote references) are denied with the first error by path,
so that the model can correct itself.
Codes: `ceilings.hops`; the schema's is `ingress.schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import jsonschema_rs
import msgspec
from msgspec import Meta, Struct

STAGE: Final = "ceilings"

MAX_SUMMARY: Final = 500  # characters of an error that a summary quotes
MAX_PLACE: Final = 200  # characters of the way to it
MASK: Final = "the value"


class CeilingsEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`ceilings:` of an agent; what is absent is not limited."""

    max_hops: Annotated[int, Meta(ge=0)] | None = None
    max_retries: Annotated[int, Meta(ge=1)] | None = None


def hops_summary(hops: int) -> str:
    return f"stopped after {hops} steps without a final answer"


def retries_summary(error: str) -> str:
    return f"gave up: {error[:MAX_SUMMARY]}"


class SchemaError(ValueError):
    """A tool's schema in the policy is not a valid JSON Schema, or reaches outside itself; `path` leads to it in the schema."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class ArgumentSchema:
    """A tool's compiled JSON Schema."""

    __slots__ = ("_masked", "_validator")

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        try:
            self._validator = jsonschema_rs.Draft202012Validator(schema, retriever=_refuse, pattern_options=_LINEAR)
            self._masked = jsonschema_rs.Draft202012Validator(schema, mask=MASK, retriever=_refuse, pattern_options=_LINEAR)
        except jsonschema_rs.ValidationError as error:
            raise SchemaError(error.message, *error.instance_path) from error
        except ValueError as error:
            raise SchemaError(str(error)) from error

    def misfit(self, args: Mapping[str, Any]) -> str | None:
        """The first error by path, for the model to read; None where the arguments fit."""
        if self._validator.is_valid(args):
            return None
        ordered = _ordered(args)
        first = min(self._validator.iter_errors(ordered), key=lambda e: ([str(p) for p in e.instance_path], e.message))
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first.instance_path)
        message = first.message if len(first.message) <= MAX_SUMMARY else self._without_value(ordered, first)
        return f"arguments{_cut(where, MAX_PLACE)}: {_cut(message, MAX_SUMMARY)}"

    def _without_value(self, args: Any, error: jsonschema_rs.ValidationError) -> str:
        """The same error in fewer words: the agent knows the value that it wrote."""
        place = (error.instance_path, error.schema_path)
        same = (e.message for e in self._masked.iter_errors(args) if (e.instance_path, e.schema_path) == place)
        return next(same, error.message)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ordered(args: Mapping[str, Any]) -> Any:
    """The arguments as the log will hold them: messages list properties in their order, and a replay must say the same."""
    return msgspec.json.decode(msgspec.json.encode(args, order="sorted"))


_LINEAR: Final = jsonschema_rs.RegexOptions()


def _refuse(uri: str) -> Any:
    raise ValueError(f"the schema refers to `{uri}`: remote references are not followed")
