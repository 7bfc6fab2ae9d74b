"""Several workers on one machine: a process each, started again where one ends, stopped together.

One that ends again and again is waited for longer each time. Exit status 2 at the start (policy, log, bus) ends all.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import structlog

from gated.shell import health_file, readiness

NO, CANNOT = 1, 2
PAUSE: Final = 0.5  # seconds before a worker is started again; doubled while it does not stay
LONGEST: Final = 15.0
STAYED: Final = 30.0  # seconds after which a worker counts as one that stays
WORKED: Final = 60.0  # seconds after which a worker has shown that it can start

log = structlog.get_logger("gated.supervisor")


class Supervisor:
    """`command` is a worker's without its name; they are called `name-1`, `name-2`, … The health file is that of all of them."""

    def __init__(self, command: Sequence[str], name: str, workers: int, health: Path | None = None) -> None:
        self._health = health
        self._command, self._names = list(command), [f"{name}-{number}" for number in range(1, workers + 1)]
        self._running: dict[str, anyio.abc.Process] = {}
        self._stopped = anyio.Event()
        self._worked = False
        self.status = 0

    async def run(self) -> int:
        """Until SIGTERM or SIGINT; the exit status of all. Raises `HealthFileError`."""
        if self._health is not None:
            await health_file.write(self._health, self.why_not())
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as heard:
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    async for number in heard:
                        if number != signal.SIGHUP:
                            self._stopped.set()
                        self._signal(signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)

                async def keep_all() -> None:
                    async with anyio.create_task_group() as workers:
                        for name in self._names:
                            workers.start_soon(self._keep, name)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(listen)
                if self._health is not None:
                    tasks.start_soon(health_file.keep, self._health, self.why_not)
                tasks.start_soon(keep_all)
        return self.status

    def why_not(self) -> str:
        """Why not every worker decides; empty where all do."""
        each = ((name, readiness.why_not(file)) for name in self._names if (file := self._file_of(name)) is not None)
        return "; ".join(f"{name}: {why}" for name, why in each if why)

    def _file_of(self, name: str) -> Path | None:
        return None if self._health is None else self._health.with_name(f"{self._health.name}.{name}")

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, name: str) -> None:
        pause = PAUSE
        while not self._stopped.is_set():
            began, status = time.monotonic(), await self._run_one(name)
            if self._stopped.is_set():
                self.status = self.status or max(0, status)
                return
            log.error("a worker ended", worker=name, status=status)
            if status == CANNOT and not self._worked:  # later it is the servers that are away
                self.status = CANNOT
                self._stopped.set()
                self._signal(signal.SIGTERM)
                return
            self._worked |= time.monotonic() - began > WORKED
            pause = PAUSE if time.monotonic() - began > STAYED else min(LONGEST, pause * 2)
            with anyio.move_on_after(pause):
                await self._stopped.wait()

    async def _run_one(self, name: str) -> int:
        """A worker from its start to its end; its exit status."""
        file = self._file_of(name)
        command = [*self._command, "--name", name, *(() if file is None else ("--health-file", str(file)))]
        try:
            # a session of its own: Ctrl-C reaches it by way of this process, which then waits for it
            process = await anyio.open_process(command, stdin=None, stdout=None, stderr=None, start_new_session=True)
        except OSError as error:  # too many processes, too little memory: the others go on
            log.error("a worker cannot be started", worker=name, error=str(error))
            return NO
        self._running[name] = process
        if self._stopped.is_set():  # while it was started: nobody has told it
            process.terminate()
        status = await process.wait()
        del self._running[name]
        return status


def worker_command(options: Mapping[str, object], flags: Sequence[str] = ()) -> list[str]:
    """`gated serve` for one worker, with those options that are given."""
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return [sys.executable, "-m", "gated", "serve", *given, *flags]
