"""Reading the files that people write (policies, scenarios): strictly, and with the place of every mistake.

`parse_document` reads text, `merge_documents` makes a folder one document, `decode` makes a document a struct,
`write_yaml` makes text of data.
INVARIANT: nothing is skipped: unknown keys, duplicate keys, wrong types raise `DocumentError` with file, line and text.
This package reads no files and knows nothing of policies.
"""

from gated.documents.decoding import decode, did_you_mean
from gated.documents.document import Document, DocumentError, Place
from gated.documents.merging import merge_documents
from gated.documents.reading import parse_document
from gated.documents.writing import write_flow, write_yaml

__all__ = [
    "Document",
    "DocumentError",
    "Place",
    "decode",
    "did_you_mean",
    "merge_documents",
    "parse_document",
    "write_flow",
    "write_yaml",
]
