"""Fingerprints of what sensitive tools returned, to be found again in what outbound tools are given.

A text is reduced to its letters and digits; every few characters of it (a gram) are hashed under a key that the log does not
hold, and of neighbouring hashes the smallest is kept as a mark (winnowing: a copy as long as a gram and the window shares a mark
with its original, wherever it was cut out). A long result is marked more thinly, by longer grams, so that it has no more marks
than a short one. Nobody can read the result out of its marks, nor try out guesses without the key.
The longest run of marks in the arguments counts by its characters, a digit three times: 39 letters or 13 digits in a row score
0.6, 58 letters or 20 digits 0.9. A run may be seen up to three characters short at each end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from gated.core.stages.semantic import MARK
from gated.events import MILLION, Fingerprints, Score
from gated.shell.detectors.texts import TooLong, forms, leaves, plain

GRAM: Final = 8  # characters of a gram
WINDOW: Final = 4  # neighbouring hashes of which one is kept
LONG_GRAM: Final = 16  # of a long result: where marks are few, each must say more
MAX_MARKS: Final = 4096  # of one result
MAX_RESULT: Final = 262_144  # letters and digits of a result that can be marked
MAX_ARGUMENTS: Final = 1_048_576  # characters of arguments that can be compared, decoded ones included
SHORTEST_RUN: Final = 12  # characters below which a match is chance
WHOLE: Final = 64  # the weight of a certain match
DIGIT: Final = 3  # the weight of a digit; a letter's is 1


class Fingerprinter:
    """Marks results and finds them again. `name` stands for the key, so that marks of another key are told apart."""

    def __init__(self, key: bytes) -> None:
        own = blake2b(key, person=b"gated prints").digest()
        self.name = blake2b(b"name", key=own, digest_size=4).hexdigest()
        self._keyed = blake2b(key=own, digest_size=MARK)

    # --- results -----------------------------------------------------------------------------------------------------

    def take(self, result: Any) -> Fingerprints | str:
        """The marks of a result; a text where it is too long to be marked."""
        texts = [plain(text) for text in leaves(result)]
        if sum(map(len, texts)) > MAX_RESULT:
            return f"a result has over {MAX_RESULT} letters and digits, too many to fingerprint"
        if len(texts) > 1:  # what short texts say together: the cells of a table
            texts.append("".join(texts))
        marks, gram, window = self._marks(texts, GRAM, WINDOW), GRAM, WINDOW
        while len(marks) > MAX_MARKS:
            gram, window = LONG_GRAM, max(window + 1, window * len(marks) // MAX_MARKS)
            marks = self._marks(texts, gram, window)
        return Fingerprints(self.name, b"".join(sorted(marks)), gram, window)

    def _marks(self, texts: Sequence[str], gram: int, window: int) -> set[bytes]:
        hashes = ([self._mark(text[at : at + gram]) for at in range(len(text) - gram + 1)] for text in texts)
        return {mark for found in hashes for mark in _winnowed(found, window)}

    def _mark(self, gram: str) -> bytes:
        hashing = self._keyed.copy()
        hashing.update(gram.encode("utf-8", "surrogatepass"))
        return hashing.digest()

    # --- arguments ---------------------------------------------------------------------------------------------------

    def compare(self, arguments: Any, seen: Sequence[Fingerprints]) -> Score:
        """How much of the results stands in the arguments, in any form."""
        if any(found.key != self.name for found in seen):
            return Score(reason="the fingerprints of earlier results were made under another key")
        try:
            texts = [(plain(form.text), form.how) for form in forms(arguments, MAX_ARGUMENTS)]
        except TooLong as error:
            return Score(reason=str(error))
        best, how = 0, ""
        for gram in sorted({found.gram for found in seen}):
            window_of = self._window_of([found for found in seen if found.gram == gram])
            for text, form in texts:
                weight = max((_weight(text[a:b]) for a, b in _runs(text, gram, window_of) if b - a >= SHORTEST_RUN), default=0)
                best, how = (weight, form) if weight > best else (best, how)
        if not best:
            return Score(0)
        return Score(min(MILLION, best * MILLION // WHOLE), "a sensitive result stands in the arguments" + (how and f" ({how})"))

    def _window_of(self, seen: Sequence[Fingerprints]) -> Callable[[str], int]:
        """The window of the mark that a gram has among those seen; -1: it has none. Each gram is hashed once."""
        windows = {found.marks[at : at + MARK]: found.window for found in seen for at in range(0, len(found.marks), MARK)}
        known: dict[str, int] = {}

        def window_of(gram: str) -> int:
            window = known.get(gram)
            if window is None:
                window = known[gram] = windows.get(self._mark(gram), -1)
            return window

        return window_of


def _runs(text: str, gram: int, window_of: Callable[[str], int]) -> Iterator[tuple[int, int]]:
    """The stretches in which marks follow one another as closely as in a copy."""
    start = end = last = -1
    for at in range(len(text) - gram + 1):
        window = window_of(text[at : at + gram])
        if window < 0:
            continue
        if start >= 0 and at - last > window:
            yield start, end
            start = -1
        start, end, last = (at if start < 0 else start), at + gram, at
    if start >= 0:
        yield start, end


def _winnowed(hashes: Sequence[bytes], window: int) -> Iterator[bytes]:
    """The smallest hash of every `window` neighbours, the last of equal ones; of fewer hashes the smallest."""
    if not hashes:
        return
    smallest = -1
    for end in range(min(window, len(hashes)), len(hashes) + 1):
        begin = end - window
        if smallest < begin or smallest < 0:
            smallest = min(range(max(begin, 0), end), key=lambda at: (hashes[at], -at))
            yield hashes[smallest]
        elif hashes[end - 1] <= hashes[smallest]:
            smallest = end - 1
            yield hashes[smallest]


def _weight(text: str) -> int:
    return sum(DIGIT if char.isdigit() else 1 for char in text)
