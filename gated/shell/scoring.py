"""Asking the detectors, off the deciding path: what they say of calls and results becomes a part of the observation.

The core says which calls reach its last stage without a score. The serialiser sets their message aside, with everything that is
said later in the same thread, until the detectors have answered or run out of time; other threads go on. Then the message is
decided again, scores and all, on the state that its thread has by then.
INVARIANT: every detector that is asked gives a score or a reason why there is none, within its timeout, whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import structlog
from anyio import CapacityLimiter

from gated.core.scores import with_answers
from gated.core.stages.semantic import Detector, DetectorName, JudgeEntry, Seen, SemanticRules
from gated.core.turn import Unscored
from gated.events import CallId, Fingerprints, Observation, Reading, Score
from gated.shell.detectors import drift, injection, secrets
from gated.shell.detectors.fingerprints import Fingerprinter
from gated.shell.detectors.judge import Judge, JudgeMissing, NoAnswer, Question
from gated.shell.embedding import embedder
from gated.shell.fair_threads import FairThreads

THREADS: Final = 2  # detectors that compute at the same time
MARGIN: Final = 0.02  # seconds by which a judge's own timeout comes first, so that nothing of the question is left over
QUESTIONS: Final = 64  # questions about one agent's calls that judges have to answer at the same time

log = structlog.get_logger("gated.scoring")


class About(NamedTuple):
    """What the detectors may know of the run that something is asked for. `conceal` takes secrets out of a text."""

    thread: str
    run: str
    agent: str
    task: str | None
    rules: SemanticRules
    seen: Seen
    conceal: Callable[[str], str]


Judges = Callable[[JudgeEntry], Judge]
Said = TypeVar("Said", bound=Observation)


class Scorer:
    """All detectors of a daemon. `judge_of` makes the judge that a policy names; it may raise `JudgeMissing`."""

    def __init__(self, key: bytes, judge_of: Judges) -> None:
        self._fingerprints = Fingerprinter(key)
        self._judge_of = judge_of
        self._judges: dict[JudgeEntry, Judge] = {}
        self._threads = FairThreads(THREADS)
        self._questions: dict[str, CapacityLimiter] = {}

    async def answered(self, said: Said, about: About, unscored: Sequence[Unscored]) -> Said:
        """The observation with a score, or the reason why there is none, for everything that was `unscored` in it."""
        scores: dict[CallId, dict[str, Score]] = {}
        readings: list[Reading] = []

        async def ask(item: Unscored, name: str) -> None:
            scores.setdefault(item.call, {})[name] = await self._score(about, item, _detector(about.rules, name))

        async def read(item: Unscored) -> None:
            readings.append(await self._read(about, item))

        async with anyio.create_task_group() as tasks:
            for item in unscored:
                if item.result:
                    tasks.start_soon(read, item)
                    continue
                for name in item.detectors:
                    tasks.start_soon(ask, item, name)
        return with_answers(said, scores, readings[0] if readings else None)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _score(self, about: About, item: Unscored, detector: Detector) -> Score:
        run = partial(self._threads.run, about.agent)
        ask: Mapping[DetectorName, Callable[[], Awaitable[Score]]] = {
            "secrets": lambda: run(secrets.score, item.value),
            "exfiltration": lambda: run(self._fingerprints.compare, item.value, about.seen.fingerprints),
            "drift": lambda: run(drift.score, about.task, item.tool, item.value),
            "judge": lambda: self._judge(about, item, detector),
        }
        return await self._in_time(detector, ask[detector.name])

    async def _judge(self, about: About, item: Unscored, detector: Detector) -> Score:
        question = Question(about.thread, about.run, item.call, about.agent, item.tool, item.value, about.task)
        async with self._questions.setdefault(about.agent, CapacityLimiter(QUESTIONS)):
            left = anyio.current_effective_deadline() - anyio.current_time()
            said = await self._judge_named(about.rules.judge).ask(question, max(0.001, left - MARGIN))
        return Score(said.value, about.conceal(said.reason))

    def _judge_named(self, entry: JudgeEntry | None) -> Judge:
        assert entry is not None
        if entry not in self._judges:
            self._judges[entry] = self._judge_of(entry)
        return self._judges[entry]

    def need(self, rules: SemanticRules | None) -> None:
        """Whether this installation has what a policy's detectors need. Raises `JudgeMissing`, `EmbeddingsMissing`."""
        if rules is not None and rules.judge is not None:
            self._judge_named(rules.judge)
        if rules is not None and rules.named("drift") is not None:
            embedder()

    async def close(self) -> None:
        for judge in self._judges.values():
            await judge.close()
        await self._threads.close()

    # --- results -----------------------------------------------------------------------------------------------------

    async def _read(self, about: About, item: Unscored) -> Reading:
        found: dict[str, Any] = {}

        async def take(detector: Detector) -> None:
            marks: list[Fingerprints | str] = []

            async def mark() -> Score:
                marks.append(await self._threads.run(about.agent, self._fingerprints.take, item.value))
                return Score(0)

            failed = await self._in_time(detector, mark)
            found["fingerprints"] = marks[0] if marks else failed.reason

        async def look(detector: Detector) -> None:
            found["injection"] = await self._in_time(detector, lambda: self._threads.run(about.agent, injection.read, item.value))

        async with anyio.create_task_group() as tasks:
            for name in item.detectors:
                tasks.start_soon(take if name == "exfiltration" else look, _detector(about.rules, name))
        return Reading(**found)

    # --- whatever becomes of them ------------------------------------------------------------------------------------

    async def _in_time(self, detector: Detector, ask: Callable[[], Awaitable[Score]]) -> Score:
        with anyio.move_on_after(detector.timeout / 1e6):
            try:
                return await ask()
            except NoAnswer as error:
                why = str(error)
            except Exception as error:
                log.exception("a detector failed", detector=detector.name)
                why = f"it failed: {error}" if isinstance(error, JudgeMissing) else f"it failed: {type(error).__name__}"
            log.warning("no score", detector=detector.name, why=why)
            return Score(reason=why)
        log.warning("no score in time", detector=detector.name, seconds=detector.timeout / 1e6)
        return Score(reason=f"no answer within {detector.timeout / 1e6:g}s")


def _detector(rules: SemanticRules, name: str) -> Detector:
    return next(detector for detector in rules.detectors if detector.name == name)


def unanswered(said: Said, unscored: Sequence[Unscored], why: str) -> Said:
    """The observation where nobody could be asked in the end, and why."""
    scores = {item.call: dict.fromkeys(item.detectors, Score(reason=why)) for item in unscored if not item.result}
    results = [item for item in unscored if item.result]
    reading = Reading(
        injection=Score(reason=why) if any("injection" in item.detectors for item in results) else None,
        fingerprints=why if any("exfiltration" in item.detectors for item in results) else None,
    )
    return with_answers(said, scores, reading if results else None)
