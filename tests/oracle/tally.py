"""The numbers of a run or a thread, each by scanning the log. decisions.md §1, §4, §5."""

from __future__ import annotations

from oracle.history import Entry, Run, Runs, Thread
from oracle.values import microusd

DEFAULT_CALL_COST = "0.01"


def steps(thread: Thread, runs: Runs) -> int:
    """Calls that succeeded."""
    return sum(e.data["status"] == "success" for e in thread.among("settled", runs))


def steps_and_in_flight(thread: Thread, runs: Runs) -> int:
    admitted = thread.among("admitted", runs)
    return steps(thread, runs) + sum(thread.settlement(e.run, e.call) is None for e in admitted)


def calls(thread: Thread, runs: Runs) -> int:
    """Admitted, never given back."""
    return len(thread.among("admitted", runs))


def history(thread: Thread, runs: Runs) -> list[str]:
    return [e.data["tool"] for e in thread.among("admitted", runs)]


def cost(thread: Thread, runs: Runs) -> int:
    """Settled and reserved, in micro-dollars."""
    return sum(_cost_of(thread, e) for e in thread.among("admitted", runs))


def _cost_of(thread: Thread, admitted: Entry) -> int:
    settled = thread.settlement(admitted.run, admitted.call)
    return int(settled.data["cost"] if settled else admitted.data["reserved"])


def tokens(thread: Thread, runs: Runs) -> int:
    return sum(e.data["tokens"] for e in thread.among("settled", runs))


def hops(thread: Thread, run: str) -> int:
    return len(thread.of("hop", run))


def grounded_calls(thread: Thread, run: Run) -> int:
    end = thread.log.index(ending) if (ending := thread.ending(run.id)) is not None else len(thread.log)
    done = [e for e in thread.log[:end] if e.run == run.id and e.kind == "settled" and e.data["status"] == "success"]
    return sum(e.data["grounds"] for e in done)


def consecutive_errors(thread: Thread, run: str) -> int:
    """decisions.md §4: error outcomes, lapses, misfits; a success starts again, `not_run` does neither.

    §3: after the run's end outcomes move money, machines and steps only.
    """
    count, ending = 0, thread.ending(run)
    for entry in thread.log:
        if entry is ending:
            break
        if entry.run == run and entry.kind == "misfit":
            count += 1
        elif entry.run == run and entry.kind == "settled" and entry.data["status"] == "error":
            count += 1
        elif entry.run == run and entry.kind == "settled" and entry.data["status"] == "success":
            count = 0
    return count


def per_call_cost(run: Run) -> int:
    resource = (run.profile.get("dcbf") or {}).get("resource") or {}
    return microusd(resource.get("per_call_cost_usd", DEFAULT_CALL_COST))


def trusts_costs(run: Run) -> bool:
    return bool(run.policy.budget(run.agent).get("trust_costs", False))


def tool_cost(run: Run, tool: str) -> int | None:
    said = run.policy.tool(tool).get("cost_usd")
    return None if said is None else microusd(said)


def reservation(run: Run, tool: str, estimate_usd: object) -> int:
    """decisions.md §5: the estimate, else the tool's cost, else the default; the tool's cost is a floor unless trusted."""
    floor = tool_cost(run, tool)
    if estimate_usd is None:
        return per_call_cost(run) if floor is None else floor
    return _floored(run, microusd(estimate_usd), floor)


def settled_cost(run: Run, tool: str, reserved: int, status: str, cost_usd: object, by: str) -> int:
    """`not_run` gives money back only when it does not come from the agent; no cost: the reservation stands.

    Where a person answered for the tool it was not run.
    """
    if by.startswith("approver:"):
        return 0
    if status == "not_run":
        return reserved if by.startswith("agent:") else 0
    if cost_usd is None:
        return reserved
    return _floored(run, microusd(cost_usd), tool_cost(run, tool))


def _floored(run: Run, cost: int, floor: int | None) -> int:
    return cost if floor is None or trusts_costs(run) else max(cost, floor)
