"""`dcbf:` of an agent in the policy file."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from gated.core.names import Label, ToolName

DEFAULT_PAIRS: Final = (
    ("sql_query", "http_request"),
    ("file_read", "send_email"),
    ("database_query", "webhook_post"),
)
PER_CALL_USD: Final = 0.01
DEFAULT_NAMES: Final = ("safety", "privacy", "resource", "scope", "stability")

Amount = float | int
Scope = Literal["run", "thread"]
Share = Annotated[float, Meta(ge=0)] | Annotated[int, Meta(ge=0)]


class SafetyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    margin: Amount = 0.1
    window: Annotated[int, Meta(ge=2, le=1000)] = 5
    pairs: tuple[tuple[ToolName, ToolName], ...] = DEFAULT_PAIRS
    scope: Scope = "run"


class PrivacyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    budget: Amount = 0.5
    per_call: Share = 0.2
    tools: tuple[ToolName, ...] | None = None
    scope: Scope = "run"


class ResourceEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit_usd: Amount = 10.0
    per_call_cost_usd: Share = PER_CALL_USD
    scope: Scope = "run"


class DriftEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`embeddings: local` has the daemon record embeddings of tasks and calls (`gated[embeddings]`); else it is inert."""

    max_drift: Amount = 0.8
    embeddings: Literal["local"] | None = None
    scope: Scope = "run"


class StabilityEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    step_budget: Annotated[int, Meta(ge=0)] = 50
    scope: Scope = "run"


class CounterEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tools: tuple[ToolName, ...]
    per_call: Share
    budget: Amount


class LayerEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """activation(weights x + bias): one row of weights and one bias for each of its outputs. `slope`: of leaky_relu."""

    weights: tuple[tuple[Amount, ...], ...]
    bias: tuple[Amount, ...]
    activation: Literal["none", "relu", "leaky_relu", "tanh", "sigmoid"] = "none"
    slope: Amount = 0.01


class NeuralEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A learned barrier: `model` is an ONNX file beside the policy.

    What the file holds is written into the policy as it is recorded (`layers`, and `features` where the policy names none), so
    that its digest stands for the weights and a replay needs no file. `sha256` is what the file must be.
    """

    model: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    features: tuple[str, ...] = ()
    layers: tuple[LayerEntry, ...] = ()


class BarrierEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An added barrier, of exactly one kind: `counter`, `expr`, `python` or `neural`.

    `margin` is subtracted from its value; `weight` counts in the composite only. `python` names an entry point of the group
    `gated.barriers`, called with the run and `params`; `provided_by` is the package and version that must offer it, filled
    in where the policy does not say it.
    """

    counter: CounterEntry | None = None
    expr: str | None = None
    python: str | None = None
    neural: NeuralEntry | None = None
    params: dict[str, Any] = {}
    provided_by: str | None = None
    weight: Share = 1.0
    margin: Amount = 0.0
    scope: Scope = "run"


class DcbfEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    verification: bool = True
    kappa: Annotated[float, Meta(gt=0, le=1)] = 1.0
    power: Annotated[int, Meta(ge=1, le=16)] = 1
    safety: SafetyEntry = SafetyEntry()
    privacy: PrivacyEntry = PrivacyEntry()
    resource: ResourceEntry = ResourceEntry()
    scope: DriftEntry = DriftEntry()
    stability: StabilityEntry = StabilityEntry()
    neural: NeuralEntry | None = None  # short for a barrier of this name
    remove: tuple[str, ...] = ()
    barriers: dict[Label, BarrierEntry] = {}
