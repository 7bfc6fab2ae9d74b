"""How long one hostile message can hold the decider in redaction: `python -m benchmarks.redaction`.

Each message is one call of about a megabyte, made of what some part of redaction likes least; the figures are CPU milliseconds of
deciding and sealing it, the worst first. `--default` measures the default detectors instead of all of them.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from gated.core.decide import record
from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import CallId, IntentsReceived, RunId, Sender, ThreadId, Wanted

BYTES: Final = 1_000_000
VALUES: Final = 9_900  # of the 10,000 that a message may have

POLICY: Final = """
version: 1
redact: {detectors: [%s]}
agents: {a: {allowed_tools: [pay], approval_required: [pay], data_scope: any}}
"""

PIECES: Final = {
    "plain": "lorem ipsum ",
    "digits": "1 ",
    "numbers of cards": "4111 1111 1111 1112 ",
    "numbers of accounts": "DE12 ABCD EFGH IJKL MNOP QRST ",
    "numbers of people": "000-12-3456 ",
    "numbers of phones": "00123456789 ",
    "addresses": "a@b.co ",
    "passwords": "password=abcd ",
    "escapes": "%41",
    "no escapes": "%zz",
    "escapes of escapes": "%25",
    "ligatures": "\ufdfa",
    "marks in no order": "\u0315\u0300",
    "jamo": "\u1100\u1161",
    "wide digits": "\uff11",
    "other digits": "\u0661 ",
    "invisible": "\u200b",
}


def messages() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {"text": piece * (BYTES // len(piece.encode()))} for name, piece in PIECES.items()}
    found["many addresses"] = {"list": [f"a{number}@b.co" for number in range(VALUES)]}
    found["many passwords"] = {"list": [f"password={number:06}" for number in range(VALUES)]}
    found["many wide digits"] = {"list": ["\uff11" * 30] * VALUES}
    found["many escapes"] = {"list": ["%41" * 30] * VALUES}
    found["many long numbers"] = {"list": [4_111_111_111_111_111 + number for number in range(VALUES)]}
    found["many keys"] = {f"password={number:06}": 1 for number in range(VALUES // 2)}
    return found


def milliseconds(text: str, args: dict[str, Any]) -> float:
    policy = load_text(text, file="policy.yaml")
    registry = Registry(policy, {policy.digest: policy}, Vault(b"k" * 32))
    said = IntentsReceived(Sender("agent", "a"), (Wanted(CallId("c"), "pay", args),))
    state = ThreadState(ThreadId("t"))
    record(
        registry, state, RunId("w"), IntentsReceived(Sender("agent", "a"), (Wanted(CallId("c"), "pay", {"p": "+1 a@b.c"}),)), 1
    )
    began = time.process_time()
    record(registry, state, RunId("r"), said, 1)
    return (time.process_time() - began) * 1000


def main() -> None:
    detectors = "secrets" if "--default" in sys.argv[1:] else "secrets, email, card, ssn, iban, phone"
    found = sorted(((milliseconds(POLICY % detectors, args), name) for name, args in messages().items()), reverse=True)
    for spent, name in found:
        sys.stdout.write(f"{spent:8.1f} ms  {name}\n")


if __name__ == "__main__":
    main()
