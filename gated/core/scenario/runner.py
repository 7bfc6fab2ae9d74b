"""Runs the scenarios of a document and reports every expectation that did not hold."""

from __future__ import annotations

import random  # noqa: TID251
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from gated import canonical, ingress
from gated.core import policy as policies
from gated.core.pipeline import barrier_state
from gated.core.policy import Policy
from gated.core.replay import Difference as ReplayDifference
from gated.core.replay import replay
from gated.core.scenario import expect, steps
from gated.core.scenario.format import AdvanceEntry, ScenarioEntry, ScenarioFile, StateEntry, StepEntry
from gated.core.scenario.world import Prepare, World
from gated.core.stages import dcbf
from gated.documents import Document, DocumentError, decode, parse_document
from gated.events import AgentId, CallId, Finding, FinishRequested, PolicyBound, RunId, Sender, ThreadId
from gated.units import parse_duration

Read = Callable[[str], Document]
Load = Callable[[Document], Policy]
Named = str | dict[str, Any]  # a policy beside the file, or the policy itself


class Failure(Struct, frozen=True):
    """One expectation that did not hold. `step` is its number in the scenario, from 1; `2.1.3` inside `concurrent` (step, list,
    step of the list); `state` or `replay`."""

    step: int | str
    key: str
    expected: Any
    got: Any
    findings: tuple[Finding, ...] = ()


class Result(Struct, frozen=True):
    """`seed` draws the interleavings of `concurrent` steps again."""

    file: str
    scenario: str
    ok: bool
    seed: int
    failures: tuple[Failure, ...] = ()


def run_document(
    document: Document, read: Read, seed: int = 0, load: Load = policies.load, prepare: Prepare | None = None
) -> Iterator[Result]:
    """Run every scenario of a file. Raises `DocumentError`.

    `read` reads a policy file that it names, `load` compiles it, `prepare` adds embeddings where the policy reads them.
    """
    entry = decode(document, ScenarioFile)
    if not entry.scenarios:
        raise DocumentError(document.file, document.line(("scenarios",)), "`scenarios` is empty: nothing would be tested")
    policy_of = partial(_policy, document, read, load)
    loaded = policy_of(entry.policy)
    for position, scenario in enumerate(entry.scenarios):
        if not scenario.steps and scenario.state == StateEntry():
            message = f"scenario `{scenario.name}` has no steps and no `state`: nothing would be tested"
            raise DocumentError(document.file, document.line(("scenarios", position)), message)
        play = _Play(document, position, scenario, policy_of, World(loaded, prepare), seed)
        failures = tuple(play.run())
        yield Result(document.file, scenario.name, not failures, seed, failures)


def _policy(document: Document, read: Read, load: Load, value: Named) -> Policy:
    """The policy of a path beside the file, or of the mapping itself (errors then name the scenario file)."""
    if isinstance(value, str):
        return load(read(value))
    text = canonical.encode(value)
    try:
        return load(parse_document(text, file=f"{document.file} (policy).json"))
    except DocumentError as error:
        raise DocumentError(document.file, document.line(("policy",)), f"in the policy: {error.message}") from error


class _Play:
    def __init__(
        self,
        document: Document,
        position: int,
        entry: ScenarioEntry,
        policy_of: Callable[[Named], Policy],
        world: World,
        seed: int,
    ) -> None:
        self.document, self.position, self.policy_of, self.seed = document, position, policy_of, seed
        self.entry = self._named(entry)
        self.world = world
        self.failures: list[Failure] = []
        self.resolutions = 0

    def run(self) -> list[Failure]:
        world, entry = self.world, self.entry
        self._begin(entry, self._agent(entry))
        world.scores, world.links = entry.scores, entry.links
        steps.start(world, task=entry.task, labels=entry.labels)
        for number, step in enumerate(entry.steps):
            self._step(step, str(number + 1))
        self._compare_state(entry.state)
        self._replay()
        return self.failures

    def _begin(self, entry: ScenarioEntry, agent: AgentId) -> None:
        """Speak for the scenario's run, as long as the bus would carry what is said of it."""
        run, thread = entry.run, entry.thread or entry.run
        try:
            for key, name in (("agent", agent), ("run", run), ("thread", thread)):
                steps.known_id(key, name)
            ingress.refuse_unfit(ingress.Task | None, entry.task, "task")
        except ValueError as error:
            raise self._error((), str(error)) from error
        self.world.speak_for(ThreadId(thread), RunId(run), agent)

    def _agent(self, entry: ScenarioEntry) -> AgentId:
        if entry.agent is not None:
            return AgentId(entry.agent)
        agents = list(self.world.current.agents)
        if len(agents) != 1:
            raise self._error((), f"the policy has {len(agents)} agents: say which `agent` the scenario is about")
        return agents[0]

    def _error(self, path: tuple[str | int, ...], message: str) -> DocumentError:
        return DocumentError(self.document.file, self.document.line(("scenarios", self.position, *path)), message)

    # --- names -------------------------------------------------------------------------------------------------------

    def _named(self, entry: ScenarioEntry) -> ScenarioEntry:
        """Every call gets its id: the n-th of the scenario is `c<n>` unless it names one."""
        self._count, self._ids = 0, set[str]()
        return replace(entry, steps=tuple(self._named_step(step, (i,)) for i, step in enumerate(entry.steps)))

    def _named_step(self, step: StepEntry, path: tuple[str | int, ...]) -> StepEntry:
        try:
            several = step.action in ("batch", "advance", "concurrent")
            if step.expect is not UNSET:
                expect.check(step.expect, several=several)
        except ValueError as error:
            raise self._error(("steps", *path), f"step {_numbered(path)}: {error}") from error
        if step.interleavings < 1:
            raise self._error(
                ("steps", *path), f"step {_numbered(path)}: `interleavings` is 1 or more, not `{step.interleavings}`"
            )
        if step.intent is not None:
            return replace(step, intent=replace(step.intent, id=self._name(step.intent.id, path)))
        if step.batch is not None:
            return replace(step, batch=tuple(replace(c, id=self._name(c.id, path)) for c in step.batch))
        if step.run is not None:
            return replace(step, run=replace(step.run, call=self._name(step.run.call, path)))
        if step.concurrent is not None:
            lanes = tuple(
                tuple(self._named_step(inner, (*path, "concurrent", i, j)) for j, inner in enumerate(lane))
                for i, lane in enumerate(step.concurrent)
            )
            return replace(step, concurrent=lanes)
        return step

    def _name(self, given: str | None, path: tuple[str | int, ...]) -> str:
        self._count += 1
        made = f"c{self._count}"
        if given is None and made in self._ids:
            raise self._error(("steps", *path), f"the call gets the id `{made}`, which another call has been given")
        name = made if given is None else given
        self._ids.add(name)
        return name

    # --- steps -------------------------------------------------------------------------------------------------------

    def _step(self, step: StepEntry, label: str) -> None:
        try:
            answers, single = self._play(step, label)
            self._judge(step, label, answers, single)
        except ValueError as error:
            if isinstance(error, DocumentError | expect.Difference):
                raise
            place = ("steps", int(label.partition(".")[0]) - 1)
            raise self._error(place, f"step {label}: {error}") from error

    def _play(self, step: StepEntry, label: str) -> tuple[list[Any], bool]:
        """The answers to a step, and whether its expectation is of one thing rather than of a list of verdicts."""
        world = self.world
        match step.action:
            case "intent" | "batch":
                return steps.intents(world, steps.calls_of(step), step.mode, step.nesting), step.intent is not None
            case "outcome":
                assert step.outcome is not None
                return steps.outcome(world, step.outcome), True
            case "run":
                return self._run(step, label), True
            case "resolve":
                assert step.resolve is not None
                self.resolutions += 1
                return steps.resolve(world, step.resolve, self.resolutions), True
            case "forget":
                assert step.forget is not None
                return steps.forget(world, step.forget.ticket, step.forget.by), True
            case "finish":
                return world.observe(FinishRequested(world.sender)), not isinstance(step.expect, list)
            case "abort":
                reason = step.abort.reason if step.abort is not None else ""
                return steps.abort(world, reason), not isinstance(step.expect, list)
            case "advance":
                return self._advance(step), False
            case "switch":
                assert step.switch is not None
                return steps.switch(world, step.switch), True
            case "policy":
                return self._bind(step), True
            case _:
                return self._concurrent(step, label), False

    def _run(self, step: StepEntry, label: str) -> list[Any]:
        assert step.run is not None
        asked, ended = steps.run(self.world, step.run, step.run.call or "")
        self._differs(
            label,
            expect.views(self.world, asked),
            lambda: expect.compare({"decision": "allow"}, _last(expect.views(self.world, asked))),
        )
        return ended

    def _advance(self, step: StepEntry) -> list[Any]:
        assert step.advance is not None
        entry = step.advance if isinstance(step.advance, AdvanceEntry) else AdvanceEntry(by=step.advance)
        return self.world.advance(parse_duration(entry.by), entry.fire)

    def _bind(self, step: StepEntry) -> list[Any]:
        assert step.policy is not None
        world = self.world
        world.bind(self.policy_of(step.policy))
        if not step.now:
            return []
        return world.observe(PolicyBound(Sender("operator", "scenario"), world.current.digest))

    def _concurrent(self, step: StepEntry, label: str) -> list[Any]:
        """Play the lanes in `interleavings` drawn orders, each on a fork; the last one's state goes on."""
        assert step.concurrent is not None
        before, answers = self.world, list[Any]()
        draw = random.Random(self.seed)
        for _ in range(max(1, step.interleavings)):
            self.world = before.fork()
            answers = []
            for lane, position in _interleaving(step.concurrent, draw):
                inner = step.concurrent[lane][position]
                part = f"{label}.{lane + 1}.{position + 1}"
                got, single = self._play(inner, part)
                self._judge(inner, part, got, single)
                answers += expect.views(self.world, got)
            if step.expect is not UNSET and not self.failures:
                self._differs(label, answers, partial(expect.compare_list, step.expect, answers))
            if self.failures:
                break
        return answers

    def _judge(self, step: StepEntry, label: str, answers: list[Any], single: bool) -> None:
        if step.action == "concurrent":
            return
        views = expect.views(self.world, answers)
        if step.expect is UNSET:
            refused = [view for view in views if view.get("refused")]
            if refused and step.action != "switch":
                self.failures.append(Failure(_number(label), "refused", None, f"{refused[0]['refused']}: {refused[0]['reason']}"))
        elif single and isinstance(step.expect, dict):
            self._differs(label, views, lambda: expect.compare(step.expect, expect.summary(self.world, answers)))
        else:
            self._differs(label, views, lambda: expect.compare_list(step.expect, views))

    def _differs(self, label: str, views: list[dict[str, Any]], comparing: Callable[[], None]) -> None:
        try:
            comparing()
        except expect.Difference as found:
            findings = expect.findings_of(views)
            self.failures.append(Failure(_number(label), found.key, found.expected, found.got, findings))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _compare_state(self, entry: StateEntry) -> None:
        got = state_of(self.world)
        for key in entry.__struct_fields__:
            wanted = getattr(entry, key)
            if wanted is not UNSET and not expect.matches(wanted, got.get(key)):
                self.failures.append(Failure("state", key, wanted, got.get(key)))

    def _replay(self) -> None:
        """The log of the scenario gives the same decisions again, byte for byte."""
        world = self.world
        difference: ReplayDifference | None = replay((e.record for e in world.log), world.known.get)
        if difference is not None:
            self.failures.append(Failure("replay", difference.what, difference.recorded, difference.derived))


def _number(label: str) -> int | str:
    return int(label) if label.isdecimal() else label


def _numbered(path: tuple[str | int, ...]) -> str:
    """The number of a step in the file, as a failure says it."""
    return ".".join(str(part + 1) for part in path if isinstance(part, int))


def _last(views: list[dict[str, Any]]) -> dict[str, Any]:
    return views[-1] if views else {}


def _interleaving(lanes: tuple[tuple[StepEntry, ...], ...], draw: random.Random) -> list[tuple[int, int]]:
    """A drawn order of all steps in which those of one lane keep theirs."""
    order = [lane for lane, inner in enumerate(lanes) for _ in inner]
    draw.shuffle(order)
    seen = [0] * len(lanes)
    found: list[tuple[int, int]] = []
    for lane in order:
        found.append((lane, seen[lane]))
        seen[lane] += 1
    return found


def state_of(world: World) -> dict[str, Any]:
    """What the fold holds of the present run, in the words of a scenario's `state:`."""
    run, state = world.run_state, world.state
    if run is None:
        return {"history": [], "step_count": 0, "hop_count": 0, "failed": False}
    profile = world.known[run.policy].profile(run.agent)
    return {
        "phase": str(run.phase),
        "step_count": run.step_count,
        "hop_count": run.hop_count,
        "retry_count": run.retry_count,
        "call_count": run.own.calls,
        "cost_usd": run.own.cost_microusd / 1e6,
        "tokens": run.own.tokens,
        "failed": run.failed,
        "history": world.history(),
        "barriers": dcbf.get_barrier_values(profile.dcbf, barrier_state(profile, run, state.tally, state.at, run.drift)),
        "machines": state.order.view(world.run),
        "metrics": state.order.totals(),
        "loop_count": {"ACTING": run.dfa.loops},
        "in_flight": sorted(run.in_flight),
    }


__all__ = ["CallId", "Failure", "Result", "run_document"]
