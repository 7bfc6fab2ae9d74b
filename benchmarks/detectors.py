"""What a detector costs: none of it is spent while deciding, but it is spent on the same cores."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import core
from gated.core.policy import load_text
from gated.events import Fingerprints, Score
from gated.shell.detectors import drift, injection, secrets
from gated.shell.detectors.fingerprints import Fingerprinter

SCORED = core.PLAIN + "semantic: {secrets: {}, exfiltration: {}, injection: {}, judge: {nats: gated.judge.calls}}\n"
SCORES = {"secrets": Score(0), "judge": Score(100_000)}

SENTENCE = (
    "Dear Ana, the shipment of order {} leaves Hamburg on the {}th; please tell the customer and keep the invoice {} open. "
)


def text(characters: int) -> str:
    whole = "".join(SENTENCE.format(n * 7919, n % 28 + 1, n * 104_729) for n in range(characters // 100 + 1))
    return whole[:characters]


def measure() -> dict[str, float]:
    printer, mail = Fingerprinter(b"k" * 32), {"to": "ana@ours.example", "subject": "late", "body": text(2_000)}
    seen = printer.take(text(10_000)[::-1])
    assert isinstance(seen, Fingerprints)
    found = {
        "detect_us_secrets_2kB": _spent(lambda: secrets.score(mail)),
        "detect_us_exfiltration_2kB": _spent(lambda: printer.compare(mail, [seen])),
        "detect_us_fingerprint_10kB": _spent(lambda: printer.take(text(10_000))),
        "detect_us_injection_10kB": _spent(lambda: injection.read(text(10_000))),
    }
    try:
        found["detect_us_drift_2kB"] = _spent(lambda: drift.score("Tell the customers about late orders", "send_email", mail))
    except RuntimeError:  # the extra is not installed
        pass
    spent, _ = core.play(load_text(SCORED, "bench.yaml"), 2_000, scores=SCORES)
    return {**found, "decide_us_p50_scored": core.percentiles(spent[-1000:])[0]}


def _spent(work: Callable[[], Any], times: int = 30) -> float:
    work()
    found = []
    for _ in range(times):
        started = time.process_time_ns()
        work()
        found.append((time.process_time_ns() - started) / 1000)
    return statistics.median(found)
