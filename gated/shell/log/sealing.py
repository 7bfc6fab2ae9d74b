"""When a log is sealed, and where the checkpoints go beside the log itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gated.core.chain import Heads
from gated.core.checkpoint import checkpoint
from gated.shell.keys import Signer

EVERY: Final = 1000
SHARE: Final = 4


class Sealing:
    """Seals every `every` records, and at stop. `file` gets each note appended, every outlet gets it: kept elsewhere, it shows
    a cut tail. Outlets are called on the log's own thread.

    A seal costs time in the number of threads: in a log of more than `SHARE * every` threads it waits for `threads / SHARE`
    records, so that its cost for each record is bounded. The same bounds what checking the seals costs.
    """

    def __init__(
        self,
        signer: Signer,
        every: int = EVERY,
        file: Path | None = None,
        outlets: Iterable[Callable[[str], None]] = (),
    ) -> None:
        self.signer, self.every, self.file, self.outlets = signer, every, file, list(outlets)
        self._threads = 0

    def due(self, records: int, sealed: int) -> bool:
        """Whether a log of so many records, sealed last at `sealed`, is to be sealed while it is written."""
        return records - sealed >= max(self.every, self._threads // SHARE)

    def seal(self, records: int, head: str, heads: Heads) -> str:
        """The signed note."""
        self._threads = len(heads)
        return self.signer.sign(checkpoint(self.signer.key.name, records, head, heads))

    def publish(self, note: str) -> None:
        """Take a note that the log holds elsewhere. Raises `OSError`."""
        for outlet in self.outlets:
            outlet(note)
        if self.file is None:
            return
        with self.file.open("ab") as out:
            out.write(note.encode())
            out.flush()
            os.fsync(out.fileno())
