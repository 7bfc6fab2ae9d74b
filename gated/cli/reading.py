"""Policies as commands read them: what does not load ends the command with its text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from gated.cli.output import fail
from gated.core.policy import Policy
from gated.documents import Document, DocumentError
from gated.shell.policies import load_document, policy_document

POLICY: Final = Path("policy.yaml")  # as `gated policy init` writes it and `gated up` reads it

PolicyArgument = Annotated[Path, typer.Argument(help="Policy file, or a folder of them.", metavar="POLICY")]


def document_of(path: Path) -> Document:
    """A policy file, or a folder of them as one."""
    try:
        return policy_document(path)
    except DocumentError as error:
        fail(_whole(error))


def compiled(document: Document) -> Policy:
    try:
        return load_document(document)
    except DocumentError as error:
        fail(_whole(error))


def _whole(error: DocumentError) -> str:
    """Every mistake that was found, one a line."""
    return "\n".join(map(str, (error, *error.others)))
