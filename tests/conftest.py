"""Profiles of Hypothesis for the whole suite: `fast` for people; `ci` with the same examples every time, so that no landing fails
by chance; `deep` by hand (HYPOTHESIS_PROFILE=deep). An example that chance found becomes a test of its own.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # a worker has one of its own: how wide a terminal is, each test says
busy = [HealthCheck.too_slow]  # tells of the machine, not of the test
settings.register_profile("fast", max_examples=60, deadline=None, suppress_health_check=busy, derandomize=False, print_blob=True)
settings.register_profile("ci", settings.get_profile("fast"), derandomize=True, database=None)
settings.register_profile("deep", settings.get_profile("fast"), max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "fast"))
