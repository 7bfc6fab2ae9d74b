"""The policy: every stage's rules, made of one file (or a folder of them), known by the SHA-256 of its canonical form.

`load` turns a document into a compiled `Policy` or raises `DocumentError` with file, line and the offending text; nothing
is skipped. A policy denies whatever it does not speak of: an agent without a profile gets one that has no rights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gated import canonical
from gated.core import approval_rules
from gated.core.barriers.own import Functions
from gated.core.barriers.standard import DEFAULT_OUTBOUND
from gated.core.headroom import Rooms, all_of
from gated.core.order.machines import Continuation, Machine, MachineEntry, MachineError, check_continuation, compile_machine
from gated.core.order.patterns import compile_pattern
from gated.core.order.touching import MachineSet
from gated.core.policy_file import STAGES, AgentEntry, PolicyEntry, ToolEntry, Watchable
from gated.core.redaction.redactor import Redactor, compile_redactor
from gated.core.scope import SelectorError, compile_scope, undeclared
from gated.core.stages import breaker, ceilings, contracts, dcbf, dfa, lifecycle, privilege, semantic
from gated.documents import Document, DocumentError, decode, parse_document
from gated.events import AgentId
from gated.units import parse_duration, parse_usd

Path = tuple[str | int, ...]


class Profile(Struct, frozen=True, kw_only=True):
    """One agent's compiled rules. `stages` are its enabled ones in pipeline order, with whether each is only observed.

    `heard` are those of them that can say something: not those of `silent`, which have no rules. `heard_in_calm` are those that
    can also where its `room` holds and its phase is one of `dfa.calm`.
    """

    name: AgentId
    owner: str | None
    observed: bool
    ceilings_watched: bool  # its ceilings are only observed
    stages: tuple[tuple[Watchable, bool], ...]
    heard: tuple[tuple[Watchable, bool], ...]
    heard_in_calm: tuple[tuple[Watchable, bool], ...]
    silent: frozenset[Watchable]
    operator_opens: bool
    max_open: int | None
    outcomes_from: str
    privilege: privilege.PrivilegeRules
    dfa: dfa.DfaRules
    machines: MachineSet
    ordered: bool  # the stage order is enabled and has machines
    room: Rooms  # where no budget and no barrier that reads a tally says anything of a run that inherits from none
    contracts: contracts.ContractSet
    dcbf: dcbf.DcbfRules
    breaker: breaker.BreakerRules
    ceilings: ceilings.CeilingsEntry
    grounding: frozenset[str]
    grounds: bool
    call_timeout: int
    fail_ungated: bool
    inherits: bool

    def staged(self, stages: tuple[tuple[Watchable, bool], ...]) -> Profile:
        """The same rules with other stages enabled, or observed."""
        return replace(self, stages=stages, **_hearers(stages, self.silent, self.dcbf))


def _hearers(
    stages: tuple[tuple[Watchable, bool], ...], silent: frozenset[Watchable], barriers: dcbf.DcbfRules
) -> dict[str, tuple[tuple[Watchable, bool], ...]]:
    calm = {"dfa", "dcbf"} if barriers.roomy else {"dfa"}
    heard = tuple(item for item in stages if item[0] not in silent)
    return {"heard": heard, "heard_in_calm": tuple(item for item in heard if item[0] not in calm)}


def _room(
    enabled: Sequence[Watchable], rights: privilege.PrivilegeRules, phases: dfa.DfaRules, barriers: dcbf.DcbfRules
) -> Rooms:
    found: dict[Watchable, Rooms] = {
        "privilege": privilege.room(rights.budget),
        "dfa": dfa.room(phases),
        "dcbf": barriers.room or Rooms(),
    }
    return all_of(room for stage, room in found.items() if stage in enabled)


class Policy(Struct, frozen=True, kw_only=True):
    """Compiled once, shared by all runs that are bound to it."""

    digest: str
    text: bytes  # the canonical form
    agents: Mapping[AgentId, Profile]
    nobody: Profile
    known_tools: frozenset[str]
    deny_unknown: bool
    schemas: Mapping[str, ceilings.ArgumentSchema]
    costs: Mapping[str, int]
    timeouts: Mapping[str, int]
    shared: tuple[tuple[AgentId, ...], ...]
    limits: lifecycle.LimitsEntry
    continuation: Continuation
    approvals: approval_rules.Approvals
    semantic: semantic.SemanticRules | None
    redactor: Redactor
    window: int
    embeds: bool  # tasks and calls need embeddings
    entry: PolicyEntry

    def profile(self, agent: AgentId) -> Profile:
        """The agent's profile; where it has none, one without any rights."""
        return self.agents.get(agent, self.nobody)


def load_text(text: str | bytes, file: str) -> Policy:
    """The policy in one file's text. Raises `DocumentError`."""
    return load(parse_document(text, file=file))


def load(document: Document, functions: Functions = MappingProxyType({})) -> Policy:
    """Compile a policy. Raises `DocumentError` with the file and line of what is wrong.

    `functions` are those that its barriers in Python name.
    """
    _refuse_impossible(document)
    entry = decode(document, PolicyEntry)
    text = canonical.encode(document.data)
    compiler = _Compiler(document, entry, functions)
    agents = {AgentId(name): compiler.profile(name) for name in entry.agents}
    return Policy(
        digest=hashlib.sha256(text).hexdigest(),
        text=text,
        agents=agents,
        nobody=compiler.nobody(),
        known_tools=frozenset(entry.tools),
        deny_unknown=entry.unknown_tools == "deny",
        schemas=compiler.schemas(),
        costs=compiler.costs,
        timeouts=compiler.timeouts(),
        shared=compiler.shared(),
        limits=entry.limits,
        continuation=compiler.at(("continuation",), check_continuation, entry.continuation),
        approvals=compiler.at(("approvals",), approval_rules.compile_approvals, entry.approvals, entry.groups),
        semantic=compiler.semantic(),
        redactor=compiler.at(("redact",), compile_redactor, entry.redact, _keys(agents.values())),
        window=max([5, *(p.dcbf.window for p in agents.values())]),
        embeds=any(p.dcbf.drift and "dcbf" in dict(p.stages) for p in agents.values()),
        entry=entry,
    )


def _keys(profiles: Iterable[Profile]) -> dict[str, list[Path]]:
    """The paths that machines make their keys of, by the machine's name."""
    found: dict[str, list[Path]] = {}
    for machine in (machine for profile in profiles for machine in profile.machines.machines):
        found.setdefault(machine.name, []).extend(machine.key.paths)
    return found


def _refuse_impossible(document: Document) -> None:
    data = document.data
    if not isinstance(data, dict):
        raise _error(document, (), "a policy is a mapping that begins with `version: 1`")
    if "semantic" not in data:
        _refuse_without_detectors(document, data)


def _refuse_without_detectors(document: Document, data: dict[str, Any]) -> None:
    agents = data.get("agents")
    named = agents.items() if isinstance(agents, dict) else ()
    for path, agent in [(("defaults",), data.get("defaults")), *((("agents", name), a) for name, a in named)]:
        checks = agent.get("checks") if isinstance(agent, dict) else None
        if isinstance(checks, list) and "semantic" in checks:
            where = (*path, "checks", checks.index("semantic"))
            raise _error(document, where, "the stage `semantic` needs detectors: name them under `semantic:` of the policy")


def _error(document: Document, path: Path, message: str) -> DocumentError:
    return DocumentError(document.file_of(path), document.line(path), message)


T = TypeVar("T")


class _Compiler:
    """Compiles the parts of one document, naming the place of whatever does not compile."""

    def __init__(self, document: Document, entry: PolicyEntry, functions: Functions) -> None:
        self._document = document
        self._functions = functions
        self._entry = entry
        self._base = self._machines(("machines",), entry.machines)
        self._contracts = self.at(("contracts",), contracts.compile_contracts, entry.contracts)
        self._outbound = tuple(name for name, tool in entry.tools.items() if tool.outbound)
        self._resources = {name: tool.resources for name, tool in entry.tools.items() if tool.resources.args}
        self.costs = {
            name: self.at(("tools", name, "cost_usd"), parse_usd, tool.cost_usd)
            for name, tool in entry.tools.items()
            if tool.cost_usd is not None
        }

    def at(self, path: Path, compile: Callable[..., T], *args: Any) -> T:
        """Run a stage's compiler; what it raises becomes an error of the document at `path`."""
        try:
            return compile(*args)
        except DocumentError:
            raise
        except SelectorError as error:
            raise _error(self._document, error.path, str(error)) from error
        except MachineError as error:
            raise _error(self._document, (*path, *error.path), str(error)) from error
        except ValueError as error:
            raise _error(self._document, (*path, *getattr(error, "path", ())), str(error)) from error

    def profile(self, name: str) -> Profile:
        path: Path = ("agents", name)
        raw = self._document.data["agents"][name] or {}
        defaults = self._document.data.get("defaults") or {}
        entry = msgspec.convert({**defaults, **raw}, AgentEntry)
        return self._profile(path, AgentId(name), entry, raw)

    def nobody(self) -> Profile:
        return self._profile((), AgentId(""), AgentEntry(machines=()), {})

    def _profile(self, path: Path, name: AgentId, entry: AgentEntry, raw: Mapping[str, Any]) -> Profile:
        def place(key: str) -> Path:
            return (*path, key) if key in raw else ("defaults", key)

        per_call = self.at(place("dcbf"), parse_usd, entry.dcbf.resource.per_call_cost_usd)
        observed = "observe" in (entry.mode, self._entry.mode)
        breakers, machines = self._breaker(place, entry), self._own_machines(place("machines"), entry)
        enabled = self._enabled(entry, breakers)
        stages = tuple((s, observed or entry.modes.get(s) == "observe") for s in enabled)
        silent = self._silent(machines)
        rights, phases, barriers = self._privilege(place, entry), self._dfa(place, entry), self._dcbf(place, entry, per_call)
        return Profile(
            name=name,
            owner=entry.owner,
            observed=observed,
            ceilings_watched=observed or entry.modes.get("ceilings") == "observe",
            stages=stages,
            **_hearers(stages, silent, barriers),
            silent=silent,
            operator_opens=entry.runs.opened_by == "operator",
            max_open=entry.runs.max_open,
            outcomes_from=entry.outcomes_from,
            privilege=rights,
            dfa=phases,
            machines=machines,
            ordered="order" in enabled and bool(machines.machines),
            room=_room(enabled, rights, phases, barriers),
            contracts=self._contracts,
            dcbf=barriers,
            breaker=breakers,
            ceilings=entry.ceilings,
            grounding=frozenset(entry.grounding or ()),
            grounds=bool(entry.grounding),
            call_timeout=self.at(place("call_timeout"), parse_duration, entry.call_timeout),
            fail_ungated=entry.on_ungated == "fail",
            inherits=entry.children == "inherit",
        )

    def _enabled(self, entry: AgentEntry, breakers: breaker.BreakerRules) -> list[Watchable]:
        """The breaker where it is configured, and the stages of `checks`; semantic only where it is configured."""
        present = [stage for stage in STAGES if stage != "semantic" or self._entry.semantic is not UNSET]
        return [*(("breaker",) if breakers.any else ()), *(stage for stage in present if stage in entry.checks)]

    def _silent(self, machines: MachineSet) -> frozenset[Watchable]:
        """The stages that have no rules."""
        with_rules: dict[Watchable, bool] = {"order": bool(machines.machines), "contracts": self._contracts.any}
        return frozenset(stage for stage, has in with_rules.items() if not has)

    def _refuse_undeclared(self, place: Callable[[str], Path], entry: AgentEntry) -> None:
        """`strict_resources`: a tool under a scope says which of its arguments name resources."""
        for position, text in enumerate(entry.allowed_tools):
            tool = compile_pattern(text).exact_tool
            known = ToolEntry() if tool is None else self._entry.tools.get(tool, ToolEntry())
            flaw = None if tool is None else undeclared(tool, known.resources, known.json_schema)
            if flaw is not None:
                where = ("tools", tool or "") if tool in self._entry.tools else (*place("allowed_tools"), position)
                raise _error(self._document, where, f"{flaw}; `strict_resources` wants each declared")

    def _privilege(self, place: Callable[[str], Path], entry: AgentEntry) -> privilege.PrivilegeRules:
        for key in ("allowed_tools", "forbidden_tools", "approval_required"):
            for position, text in enumerate(getattr(entry, key)):
                self.at((*place(key), position), compile_pattern, text)
        if self._entry.strict_resources and entry.data_scope != "any":
            self._refuse_undeclared(place, entry)
        return privilege.PrivilegeRules(
            entry.allowed_tools,
            entry.forbidden_tools,
            entry.approval_required,
            self.at(place("data_scope"), compile_scope, entry.data_scope, self._resources),
            self.at(place("resource_budget"), privilege.compile_budget, entry.resource_budget),
        )

    def _breaker(self, place: Callable[[str], Path], entry: AgentEntry) -> breaker.BreakerRules:
        own = entry.breaker is not None
        where, wish = (place("breaker"), entry.breaker) if own else (("breaker",), self._entry.breaker)
        return breaker.BreakerRules(
            self.at(where, breaker.compile_rule, wish),
            {
                name: self.at(("tools", name, "breaker"), breaker.compile_rule, tool.breaker)
                for name, tool in self._entry.tools.items()
                if tool.breaker is not None
            },
        )

    def _dfa(self, place: Callable[[str], Path], entry: AgentEntry) -> dfa.DfaRules:
        budget = entry.resource_budget
        steps, loops, of_thread = budget.max_steps, budget.max_loops_per_phase, budget.scope == "thread"
        return self.at(place("dfa"), dfa.compile_dfa, entry.dfa, steps, loops, of_thread)

    def _dcbf(self, place: Callable[[str], Path], entry: AgentEntry, per_call: int) -> dcbf.DcbfRules:
        return self.at(place("dcbf"), dcbf.compile_dcbf, entry.dcbf, self._outbound, per_call, self._functions)

    def _machines(self, path: Path, entries: Iterable[MachineEntry]) -> dict[str, Machine]:
        found: dict[str, Machine] = {}
        for position, entry in enumerate(entries):
            if entry.name in found:
                raise _error(self._document, (*path, position, "name"), f"machine `{entry.name}` is declared twice")
            found[entry.name] = self.at((*path, position), compile_machine, entry)
        return found

    def _own_machines(self, path: Path, entry: AgentEntry) -> MachineSet:
        if entry.machines is None:
            return MachineSet(tuple(self._base.values()))
        chosen: dict[str, Machine] = {}
        for position, item in enumerate(entry.machines):
            where = (*path, position)
            machine = self._named(where, item) if isinstance(item, str) else self._whole(where, item)
            if machine.name in chosen:
                raise _error(self._document, where, f"machine `{machine.name}` is listed twice")
            chosen[machine.name] = machine
        return MachineSet(tuple(chosen.values()))

    def _named(self, where: Path, name: str) -> Machine:
        if name not in self._base:
            known = ", ".join(f"`{n}`" for n in self._base) or "none"
            raise _error(self._document, where, f"there is no machine `{name}`: the base machines are {known}")
        return self._base[name]

    def _whole(self, where: Path, entry: MachineEntry) -> Machine:
        if entry.name in self._base:
            raise _error(self._document, where, f"machine `{entry.name}` is a base machine already: rename one")
        return self.at(where, compile_machine, entry)

    def schemas(self) -> dict[str, ceilings.ArgumentSchema]:
        return {
            name: self.at(("tools", name, "schema"), ceilings.ArgumentSchema, tool.json_schema)
            for name, tool in self._entry.tools.items()
            if tool.json_schema is not None
        }

    def semantic(self) -> semantic.SemanticRules | None:
        entry = self._entry.semantic
        if isinstance(entry, UnsetType):
            return None
        outbound = (*DEFAULT_OUTBOUND, *self._outbound)
        sensitive = tuple(name for name, tool in self._entry.tools.items() if tool.sensitive)
        return self.at(("semantic",), semantic.compile_semantic, entry, outbound, sensitive)

    def timeouts(self) -> dict[str, int]:
        return {
            name: self.at(("tools", name, "call_timeout"), parse_duration, tool.call_timeout)
            for name, tool in self._entry.tools.items()
            if tool.call_timeout is not None
        }

    def shared(self) -> tuple[tuple[AgentId, ...], ...]:
        for position, group in enumerate(self._entry.threads.shared_by):
            for agent in group:
                if agent not in self._entry.agents:
                    where = ("threads", "shared_by", position)
                    raise _error(self._document, where, f"there is no agent `{agent}`")
        return self._entry.threads.shared_by
