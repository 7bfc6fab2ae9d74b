"""The slow, obvious reading of the design pages, for the fast core to be compared with.

It keeps whole histories as plain lists and scans them for every decision. Its worth is its independence: nothing here
may import the package it is compared with.
"""

from oracle.gate import Gate
from oracle.scenario import Result, run_file

__all__ = ["Gate", "Result", "run_file"]
