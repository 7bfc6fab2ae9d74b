"""What the policy file says of data: an agent's scope, and which arguments of a tool name resources.

Only the shapes and their one error; their meaning is in `check.py`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

Kind: TypeAlias = Literal["path", "url", "host", "table", "none"]

METADATA_ADDRESS: Final = "169.254.169.254"


class DataScope(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`data_scope:` of an agent. Empty, it denies every argument that looks like a resource."""

    allowed_databases: list[str] = []
    allowed_tables: dict[str, list[str]] = {}
    allowed_api_endpoints: list[str] = []
    allowed_paths: list[str] = []
    base_path: str | None = None
    forbidden_patterns: list[str] = field(default_factory=lambda: [METADATA_ADDRESS])
    resolve: bool = False


class Resources(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`resources:` of a tool: selector -> what the values under it name."""

    args: dict[str, Kind] = {}


class ScopeError(ValueError):
    """A scope or a selector that cannot mean what it says; found when the policy is loaded."""
