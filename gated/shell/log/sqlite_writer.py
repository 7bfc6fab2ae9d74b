"""The one thread that writes a SQLite log, with natural group commit.

Whatever queued during the last commit goes into the next transaction, and all waiters of a commit are woken by one call into the
event loop. A job that fails fails alone: its batch is done again, each job behind a savepoint. One that is alone may be a single
statement: this thread needs Python's lock before and after each, and whoever decides meanwhile has it.
INVARIANT: a transaction begins by reading the epoch; where it is another writer's, this writer never writes again.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from gated.events import ThreadId
from gated.shell.log import LogLocked, LogUnavailable
from gated.shell.log.sealing import Sealing
from gated.shell.log.sqlite_file import connect, meaning

log = structlog.get_logger("gated.log")

Job = Callable[[sqlite3.Connection], None]
Statement = Callable[[int], tuple[str, Sequence[Any]]]  # of the epoch: SQL that reads it, and its values


class _Write(NamedTuple):
    job: Job
    done: asyncio.Future[None]
    whole: Statement | None


class _SealNow(NamedTuple):
    done: asyncio.Future[None]


class Writer:
    """Owns the writing connection and the lock. Made on any thread; `submit` and `close` belong to the loop's."""

    def __init__(self, path: Path, lock: int, loop: asyncio.AbstractEventLoop, sealing: Sealing | None) -> None:
        self._path, self._lock, self._loop, self._sealing = path, lock, loop, sealing
        self._queue: queue.SimpleQueue[_Write | _SealNow | None] = queue.SimpleQueue()
        self._sealings: list[_SealNow] = []
        self._closed = False
        self._fenced: LogLocked | None = None
        self.seal_at_end = True
        self._connection, self.epoch = connect(path)
        self._sealed = self._number("select coalesce(max(position), 0) from checkpoints")
        self._tried = 0
        self._thread = threading.Thread(target=self._work, name="gated-log", daemon=True)
        self._thread.start()

    async def submit(self, job: Job, whole: Statement | None = None) -> None:
        """Returns when the job is durable. A cancelled wait does not take it back.

        `whole` is all of it as one statement, which changes nothing and is an `IntegrityError` where the job would fail.
        """
        if self._closed:
            raise LogUnavailable("the log is closed")
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_Write(job, done, whole))
        await done

    async def seal(self) -> None:
        """Seal what was submitted before, if the log is sealed and there is something new."""
        if self._closed or self._sealing is None:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_SealNow(done))
        await done

    async def close(self) -> None:
        """Commit what is queued, seal it, and let go of the file."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- on the writer's thread --------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            ending = False
            while not ending:
                batch, ending = self._next()
                if batch:
                    errors = self._commit(batch)
                    self._loop.call_soon_threadsafe(_wake, batch, errors)
                if self._sealing is not None:
                    self._seal_when_due(self._sealing, (ending and self.seal_at_end) or bool(self._sealings))
                for asked in self._sealings:
                    self._loop.call_soon_threadsafe(_settle, asked.done)
                self._sealings.clear()
        finally:
            self._connection.close()
            os.close(self._lock)

    def _next(self) -> tuple[list[_Write], bool]:
        """Everything that is queued, at least one; and whether it is the end."""
        batch: list[_Write] = []
        item = self._queue.get()
        while item is not None:
            if isinstance(item, _SealNow):
                self._sealings.append(item)
            else:
                batch.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Write]) -> dict[int, Exception]:
        """Write a batch in one transaction; which of it failed, and why."""
        try:
            if len(batch) == 1 and self._at_once(batch[0].whole):
                return {}
            return self._transact(batch, guarded=False)
        except Exception as error:
            self._roll_back()
            return dict.fromkeys(range(len(batch)), self._meaning(error))

    def _at_once(self, whole: Statement | None) -> bool:
        """Do a job that is one statement, a transaction of its own. False: the job itself will say why not."""
        if whole is None or self._fenced is not None:
            return False
        try:
            self._connection.execute(*whole(self.epoch))
        except sqlite3.IntegrityError:
            return False
        return True

    def _meaning(self, error: Exception) -> Exception:
        return meaning(self._path, "write", 0, error) if isinstance(error, sqlite3.Error) else error

    def _transact(self, batch: list[_Write], *, guarded: bool) -> dict[int, Exception]:
        errors: dict[int, Exception] = {}
        self._begin()
        for index, write in enumerate(batch):
            try:
                self._run(write.job, guarded)
            except sqlite3.OperationalError:
                raise  # the file's trouble is everybody's
            except Exception as error:
                if not guarded:
                    self._roll_back()
                    return self._transact(batch, guarded=True)
                errors[index] = self._meaning(error)
        self._connection.execute("commit")
        return errors

    def _run(self, job: Job, guarded: bool) -> None:
        if guarded:
            self._connection.execute("savepoint job")
        try:
            job(self._connection)
        except sqlite3.OperationalError:
            raise  # SQLite may have ended the whole transaction
        except Exception:
            if guarded:
                self._connection.execute("rollback to job")
                self._connection.execute("release job")
            raise
        if guarded:
            self._connection.execute("release job")

    def _begin(self) -> None:
        if self._fenced is None:
            self._connection.execute("begin immediate")
            epoch = self._number("select value from meta where key = 'epoch'")
            if epoch == self.epoch:
                return
            self._fenced = LogLocked(str(self._path), f"epoch {epoch}, this one had epoch {self.epoch}")
        raise self._fenced

    def _roll_back(self) -> None:
        """End the transaction, if SQLite has not ended it itself, as it does on some errors. One that cannot be ended fails
        whatever is written next, and is tried to be ended again then: this thread lives, and who waits for it is told."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("rollback")

    def _number(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchall()[0][0])

    def _seal_when_due(self, sealing: Sealing, ending: bool) -> None:
        """A log that cannot be sealed now still decides: it says so, and tries again some records later and at the end."""
        try:
            position = self._number("select coalesce(max(position), 0) from records")
            if not (position > self._sealed if ending else sealing.due(position, max(self._sealed, self._tried))):
                return
            self._tried = position
            sealing.publish(self._seal(sealing, position))
        except Exception as error:
            self._roll_back()
            log.error("cannot seal the log", log=str(self._path), error=str(error))

    def _seal(self, sealing: Sealing, position: int) -> str:
        self._begin()
        head = self._connection.execute("select hash from records where position = ?", (position,)).fetchall()[0][0]
        rows = self._connection.execute("select thread, seq, hash from heads").fetchall()
        note = sealing.seal(position, head, {ThreadId(thread): (seq, hash_) for thread, seq, hash_ in rows})
        self._connection.execute("insert into checkpoints (position, note) values (?, ?)", (position, note))
        self._connection.execute("commit")
        self._sealed = position
        return note


def _settle(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.set_result(None)


def _wake(batch: list[_Write], errors: dict[int, Exception]) -> None:
    for index, write in enumerate(batch):
        error = errors.get(index)
        if write.done.cancelled():
            continue
        if error is None:
            write.done.set_result(None)
        else:
            write.done.set_exception(error)
