"""The SDK: put the gate before an agent's tools.

async with connect(agent="coder") as gate, gate.run(task="fix the test") as run:
    verdict = await run.check("Read", {"file_path": "a.py"})

Code without an event loop takes `gated.client.sync`, which is the same with `with` and without `await`.
"""

from gated.client.calls import Admitted, Call, Outcome, current_call, current_verdict
from gated.client.errors import (
    AlreadyMade,
    Denied,
    Expired,
    GateError,
    GateUnavailable,
    Refused,
    Rejected,
    Suspended,
    Unreported,
)
from gated.client.gate import Gate, connect
from gated.client.reminders import remind
from gated.client.run import Run
from gated.events import Reminder
from gated.wire import RunStatus, Verdict

__all__ = [
    "Admitted",
    "AlreadyMade",
    "Call",
    "Denied",
    "Expired",
    "Gate",
    "GateError",
    "GateUnavailable",
    "Outcome",
    "Refused",
    "Rejected",
    "Reminder",
    "Run",
    "RunStatus",
    "Suspended",
    "Unreported",
    "Verdict",
    "connect",
    "current_call",
    "current_verdict",
    "remind",
]
