"""What `gated policy check` says of machines that load and yet cannot do what they were written for.

Advice, never an error: a machine that only ever warns is written with a state that nothing reaches, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gated.core.order.machines import Machine, Path, Transition

STATUSES: Final = ("success", "error")  # how calls end that move anything


def lint(machines: Sequence[Machine]) -> list[tuple[str, str]]:
    """(machine, message), in the order of the machines."""
    return [(machine.name, message) for machine in machines for _, message in flaws(machine)]


May = Callable[[Transition], bool]


def distances(machine: Machine, start: str | None = None, may: May = lambda transition: True) -> dict[str, int]:
    """How many calls it takes from `start` (or the initial state) to each state that can be reached, nearest first.

    `may` leaves transitions out: those of tools that an agent is not allowed to call.
    """
    found = {machine.initial if start is None else start: 0}
    for state in (queue := list(found)):
        for target in _targets(machine, state, may):
            if target not in found:
                found[target] = found[state] + 1
                queue.append(target)
    return found


def calls_to_terminal(machine: Machine) -> int | None:
    """The least number of calls that ends the machine's work; None where it has no end that can be reached."""
    return min((calls for state, calls in distances(machine).items() if state in machine.terminal), default=None)


def _targets(machine: Machine, state: str, may: May) -> Iterator[str]:
    for transition in machine.transitions:
        if not may(transition):
            continue
        if transition.lists(state) or transition.action == "ask":  # approved, it fires from any state
            yield transition.to
            if machine.entry.on_unmatched is not None:
                yield machine.entry.on_unmatched


Flaw = tuple[Path, str]


def flaws(machine: Machine) -> Iterator[Flaw]:
    """(path inside the machine's entry, message)."""
    reached = distances(machine)
    if not machine.transitions:
        yield (), "it has no transitions: " + ("every call is denied" if machine.entry.strict else "it does nothing")
    for state in machine.states:
        if state not in reached:
            yield _names(machine, state), f"no way leads from `{machine.initial}` to the state `{state}`"
    for index in range(len(machine.transitions)):
        yield from ((("transitions", index), message) for message in _dead(machine, index, reached))
    yield from ((("terminal",), message) for message in _endless(machine, reached))
    for index, transition in enumerate(machine.transitions):
        if transition.emit is not None and transition.emit.target == "system" and transition.emit_text is not None:
            for field in transition.emit_text.fields:
                yield (
                    ("transitions", index, "emit"),
                    f"the reminder of {_name(machine, index)} puts `{{{field}}}`, which the agent chose, into its system prompt: "
                    "leave it out, or use another target",
                )


def _names(machine: Machine, state: str) -> Path:
    """Where a state is first named."""
    for index, transition in enumerate(machine.transitions):
        if transition.to == state or (transition.sources is not None and state in transition.sources):
            return ("transitions", index)
    return ("initial",) if machine.initial == state else ()


def _name(machine: Machine, index: int) -> str:
    return f"transition {index + 1} (`{machine.transitions[index].on.text}`)"


def _dead(machine: Machine, index: int, reached: dict[str, int]) -> Iterator[str]:
    """Whether a transition can fire: some state it lists must be reached, and no earlier one take all its calls there."""
    transition = machine.transitions[index]
    listed = [state for state in reached if transition.lists(state)]
    if not listed and transition.action == "ask":
        return
    if not listed:
        yield f"{_name(machine, index)} can never fire: nothing reaches a state that it lists"
        return
    ends = STATUSES if transition.status == "any" else (transition.status,)
    rivals = {(state, end): _rival(machine, index, state, end) for state in listed for end in ends}
    names = [_name(machine, rival) for rival in sorted({rival for rival in rivals.values() if rival is not None})]
    if None not in rivals.values():
        come = "comes" if len(names) == 1 else "come"
        yield f"{_name(machine, index)} can never fire: {' and '.join(names)} {come} first for the same calls"


def _rival(machine: Machine, index: int, state: str, end: str) -> int | None:
    """The earlier transition that takes all of this one's calls in a state, where they end so."""
    later = machine.transitions[index]
    earlier = enumerate(machine.transitions[:index])
    return next((i for i, transition in earlier if transition.lists(state) and _takes_all(transition, later, end)), None)


def _takes_all(earlier: Transition, later: Transition, end: str) -> bool:
    """Whether every call and outcome that fits `later`, ending so, fits `earlier`, as far as that can be seen."""
    return (
        earlier.on.takes_all(later.on)
        and earlier.status in ("any", end)
        and (earlier.content is None or (later.content is not None and earlier.content.text == later.content.text))
        and (earlier.facts is None or (later.facts is not None and earlier.facts.text == later.facts.text))
    )


def _endless(machine: Machine, reached: dict[str, int]) -> Iterator[str]:
    if not machine.terminal:
        return
    if calls_to_terminal(machine) is None:
        yield "none of its terminal states can be reached: every run that touches it is steered at its end"
        return
    for state in reached:
        if not machine.terminal & distances(machine, state).keys():
            yield f"no way leads from the state `{state}` to a terminal one: a run that gets there is steered at its end"
