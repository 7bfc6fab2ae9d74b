"""Policy files on disk: read, merged where they are a folder, and read again when they change.

INVARIANT: a policy is taken whole or not at all: with one broken file the old one stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gated.core import policy as core
from gated.core.chain import is_policy
from gated.core.policy import Policy
from gated.documents import Document, DocumentError, merge_documents, parse_document
from gated.shell.barriers import FunctionMissing, complete, stored_functions
from gated.shell.embedding import EmbeddingsMissing, require
from gated.shell.kinds import Kind, kind_of, neither

ENDINGS: Final = (".yaml", ".yml", ".json")
READ: Final = "what ends in .yaml, .yml or .json is read, as a policy or as scenarios"
SCHEMA: Final = "this is a JSON Schema, by which editors check policies"


def read_document(path: Path) -> Document:
    """One file, or all the policy files of a folder as one. Raises `DocumentError`."""
    if not path.is_dir():
        return _read(path)
    files = in_folder(path, Kind.policy)
    if not files:
        raise DocumentError(str(path), 0, f"the folder holds no policy: {READ}")
    return merge_documents(files, str(path))


def in_folder(folder: Path, kind: Kind) -> list[Document]:
    """The files of a folder that are of this kind, those of its own folders not. Raises `DocumentError`, also for a file of
    which nobody can tell what it is.
    """
    found = [_read(file) for file in sorted(folder.iterdir()) if file.suffix in ENDINGS]
    for document in found:
        if kind_of(document) is Kind.neither:
            raise _unknown(document)
    return [document for document in found if kind_of(document) is kind]


def _unknown(document: Document) -> DocumentError:
    error = neither(document)
    return DocumentError(error.file, error.line, f"{error.message} (of a folder {READ}: keep other files elsewhere)")


def _read(path: Path) -> Document:
    try:
        return parse_document(path.read_bytes(), file=str(path))
    except OSError as error:
        raise DocumentError(str(path), 0, f"cannot be read: {error.strerror}") from error


def policy_document(path: Path) -> Document:
    """The document of a policy. Raises `DocumentError`, which says how to begin where none is, and what else a file is."""
    if not path.exists():
        raise DocumentError(str(path), 0, "there is no such file: `gated policy init` writes a policy to begin with")
    document = read_document(path)
    match kind_of(document):
        case Kind.scenarios:
            raise DocumentError(str(path), 0, f"these are scenarios, not a policy: `gated policy test {path}` runs them")
        case Kind.schema:
            raise DocumentError(str(path), 0, SCHEMA)
        case Kind.neither if document.data:
            raise neither(document)
        case _:
            return document


def scenario_documents(path: Path) -> list[Document]:
    """A file of scenarios, or all that are in a folder. Raises `DocumentError`, which says what else a file is."""
    if path.is_dir():
        found = in_folder(path, Kind.scenarios)
        if not found:
            raise DocumentError(str(path), 0, f"the folder holds no scenarios: {READ}, and in no file are `scenarios`")
        return found
    document = _read(path)
    match kind_of(document):
        case Kind.policy:
            raise DocumentError(str(path), 0, f"this is a policy, not scenarios: `gated policy check {path}` looks at it")
        case Kind.schema:
            raise DocumentError(str(path), 0, SCHEMA)
        case Kind.neither if document.data and "scenarios" not in document.data:
            raise neither(document)
        case _:
            return [document]


def read_policy(path: Path) -> Policy:
    """Raises `DocumentError`."""
    return load_document(policy_document(path))


def load_document(document: Document) -> Policy:
    """A policy as a person wrote it, with what it names from outside. Raises `DocumentError`."""
    policy = core.load(*complete(document))
    if policy.embeds:
        _require_embeddings(document, policy)
    return policy


def _require_embeddings(document: Document, policy: Policy) -> None:
    agent = next(name for name, profile in policy.agents.items() if profile.dcbf.drift)
    own: tuple[str, ...] = ("agents", agent) if "dcbf" in (document.data["agents"][agent] or {}) else ("defaults",)
    try:
        require()
    except EmbeddingsMissing as error:
        raise document.error((*own, "dcbf", "scope", "embeddings"), str(error)) from error


def load_stored(text: bytes, digest: str, *, lenient: bool) -> Policy:
    """A policy out of a log. Raises `DocumentError` where it is not the one of its digest, or needs a function that is not here.

    `lenient`: such a function denies when it is called instead, so that a daemon goes on with every other run.
    """
    name = f"policy {digest[:12]} of the log.json"
    if not is_policy(digest, text):
        raise DocumentError(name, 1, f"its text does not have the digest `{digest}`: the log was changed")
    document = parse_document(text, file=name)
    try:
        return core.load(document, stored_functions(document.data, lenient=lenient))
    except FunctionMissing as error:
        raise DocumentError(document.file, 1, str(error)) from error
