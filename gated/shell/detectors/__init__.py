"""Detectors: what gives scores to calls and readings to results. None of them decides; `gated.shell.scoring` asks them."""
