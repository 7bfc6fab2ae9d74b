"""Scenario files: a policy and stories with expected verdicts, run without a bus or a clock.

They are how users test a policy and how this project states conformance. `format` is the file, `world` plays its steps on
the real core, `expect` compares; after every scenario its log is replayed and must come out byte for byte.
"""

from gated.core.scenario.runner import Failure, Result, run_document

__all__ = ["Failure", "Result", "run_document"]
