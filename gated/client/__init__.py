"""The SDK: put the gate before an agent's tools.

async with connect(agent="coder") as gate, gate.run(task="fix the test") as run:
    verdict = await run.check("Read", {"file_path": "a.py"})
"""

from gated.client.errors import Denied, Expired, GateError, GateUnavailable, Refused, Rejected, Suspended
from gated.client.gate import Gate, connect
from gated.client.run import Call, Outcome, Run
from gated.wire import RunStatus, Verdict

__all__ = [
    "Call",
    "Denied",
    "Expired",
    "Gate",
    "GateError",
    "GateUnavailable",
    "Outcome",
    "Refused",
    "Rejected",
    "Run",
    "RunStatus",
    "Suspended",
    "Verdict",
    "connect",
]
