"""Ports for what is started again where it was: the system hands them to nobody else meanwhile, as it does those of port 0."""

import itertools
import os
import socket

FIRST, LAST = 10_000, 32_000  # Linux hands out from 32,768
_numbers = itertools.count(os.getpid() * 97)  # processes that test at the same time begin in different places


def own_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    for number in _numbers:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", FIRST + number % (LAST - FIRST)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("numbers do not end")
