"""`python -m gated` is `gated`."""

from gated.cli import main

main()
