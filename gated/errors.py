"""What all errors that people are meant to read have in common. Each class stands beside what raises it."""

from __future__ import annotations


class GatedError(Exception):
    """An error whose text is for the person at the keyboard: what, where, and how to mend it."""
