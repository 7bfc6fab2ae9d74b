"""The semantic stage: detectors that find nothing, or are asked by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gated.core.lint.advice import Advice, Subject, may_meet
from gated.core.stages.semantic import Detector, SemanticRules

ORDINARY_DRIFT: Final = 800_000
JUDGES: Final = "gated.judge."  # what the permissions of `deploy/` let a daemon ask


def detectors(subject: Subject) -> Iterator[Advice]:
    rules = subject.policy.semantic
    yield from _sensitive(subject, rules)
    if rules is None:
        return
    if subject.policy.agents and not any("semantic" in stages for _, _, stages in subject.profiles()):
        yield Advice(("semantic",), "no agent has the stage semantic in its `checks`: no detector is asked")
    for detector in rules.detectors:
        yield from _detector(subject, detector)
    if rules.judge is not None and rules.judge.nats is not None and not rules.judge.nats.startswith(JUDGES):
        message = f"the permissions of `deploy/` let the daemon ask on `{JUDGES}>` only: add `{rules.judge.nats}` to its user"
        yield Advice(("semantic", "judge", "nats"), message, "advice")


def _sensitive(subject: Subject, rules: SemanticRules | None) -> Iterator[Advice]:
    tools = [name for name, tool in subject.policy.entry.tools.items() if tool.sensitive]
    watched = rules is not None and rules.named("exfiltration") is not None
    if watched and not tools:
        yield Advice(("semantic", "exfiltration"), "no tool is `sensitive`: there is nothing that exfiltration could find again")
    for name in () if watched else tools:
        yield Advice(("tools", name, "sensitive"), "`sensitive` decides nothing without `semantic: {exfiltration: {}}`")


def _detector(subject: Subject, detector: Detector) -> Iterator[Advice]:
    where = ("semantic", detector.name)
    if detector.ask is None and detector.deny is None:
        yield Advice(where, f"`{detector.name}` neither asks nor denies, whatever its score")
    if detector.name == "drift" and detector.ask is not None and detector.ask < ORDINARY_DRIFT:
        message = "calls that serve their task drift by 0.5 to 0.8: give `drift` thresholds of its own, or people are asked a lot"
        yield Advice(where, message, "advice")
    written = getattr(subject.policy.entry.semantic, detector.name).tools
    if written == ():
        yield Advice((*where, "tools"), f"`tools` is empty: `{detector.name}` is asked about no call")
    for position, pattern in enumerate(detector.patterns or () if written else ()):
        if not any(may_meet(profile, pattern) for _, profile, _ in subject.profiles()):
            yield Advice((*where, "tools", position), f"no agent may call what `{pattern.text}` matches")
