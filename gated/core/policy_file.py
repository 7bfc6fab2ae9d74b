"""The policy file: its keys and their forms, as they are written (policy.md). What they mean is compiled by `policy`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from gated.core import approval_rules
from gated.core.barriers.entries import DcbfEntry
from gated.core.names import Label, Name, ToolName
from gated.core.order.machines import Continuation, MachineEntry
from gated.core.redaction.redactor import RedactEntry
from gated.core.scope import DataScope, Resources
from gated.core.stages import breaker, ceilings, contracts, dfa, lifecycle, privilege, semantic
from gated.events import AgentId
from gated.ingress import END, ID

StageName = Literal["privilege", "dfa", "order", "contracts", "dcbf", "semantic"]
Watchable = Literal["breaker"] | StageName  # the breaker is on where it is configured
Observable = Literal["ceilings"] | Watchable  # what `modes` may name
STAGES: Final[tuple[StageName, ...]] = get_args(StageName)  # in pipeline order
Mode = Literal["enforce", "observe"]
Duration = str | int

DEFAULT_TIMEOUT: Final = "15m"


class ToolEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"json_schema": "schema"}):
    """`tools:` what the policy knows of a tool. `call_timeout` stands in for the agent's."""

    resources: Resources = Resources()
    json_schema: dict[str, Any] | bool | None = None
    cost_usd: float | int | str | None = None
    outbound: bool = False
    sensitive: bool = False
    call_timeout: Duration | None = None
    breaker: breaker.Wish = None


class ThreadsEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`threads:` the agents that may speak in one another's threads."""

    shared_by: tuple[tuple[AgentId, ...], ...] = ()


class AgentEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`agents.<name>:` and `defaults:`."""

    role: str | None = None
    owner: Name | None = None
    mode: Mode = "enforce"
    modes: dict[Observable, Mode] = {}
    checks: tuple[StageName, ...] = STAGES
    runs: lifecycle.RunsEntry = lifecycle.RunsEntry()
    outcomes_from: Annotated[str, Meta(pattern=f"^(agent|runner:{ID.pattern}){END}")] = "agent"
    allowed_tools: tuple[str, ...] = ()
    forbidden_tools: tuple[str, ...] = ()
    approval_required: tuple[str, ...] = ()
    data_scope: DataScope | Literal["any"] | None = None
    resource_budget: privilege.BudgetEntry = privilege.BudgetEntry()
    dfa: dfa.DfaEntry = dfa.DfaEntry()
    ceilings: ceilings.CeilingsEntry = ceilings.CeilingsEntry()
    grounding: tuple[ToolName, ...] | None = None
    breaker: breaker.Wish = None
    dcbf: DcbfEntry = DcbfEntry()
    machines: tuple[str | MachineEntry, ...] | None = None
    call_timeout: Duration = DEFAULT_TIMEOUT
    on_ungated: Literal["record", "fail"] = "record"
    children: Literal["inherit", "own"] = "inherit"


class PolicyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The policy file."""

    version: Literal[1]
    mode: Mode = "enforce"
    defaults: AgentEntry = AgentEntry()
    unknown_tools: Literal["pass", "deny"] = "pass"
    strict_resources: bool = False
    threads: ThreadsEntry = ThreadsEntry()
    limits: lifecycle.LimitsEntry = lifecycle.LimitsEntry()
    redact: RedactEntry = RedactEntry()
    agents: dict[Name, AgentEntry] = {}
    tools: dict[ToolName, ToolEntry] = {}
    machines: tuple[MachineEntry, ...] = ()
    continuation: Continuation = Continuation()
    contracts: tuple[contracts.ContractEntry, ...] = ()
    approvals: approval_rules.ApprovalsEntry = approval_rules.ApprovalsEntry()
    groups: dict[Label, tuple[Name, ...]] = {}
    breaker: breaker.Wish = None
    semantic: semantic.SemanticEntry | UnsetType = UNSET
