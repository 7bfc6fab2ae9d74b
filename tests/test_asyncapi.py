"""The published bus contract is the one that the structs make, and messages of the wire fit it."""

import json
from pathlib import Path

import jsonschema_rs

from gated import wire
from gated.asyncapi import document
from gated.events import CallDecided, CallId

PUBLISHED = Path(__file__).parents[1] / "docs" / "asyncapi.json"


def test_the_published_document_is_made_from_the_structs() -> None:
    assert json.loads(PUBLISHED.read_text()) == json.loads(json.dumps(document())), "run `gated asyncapi > docs/asyncapi.json`"


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    made = document()
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": made["components"]})


def test_a_verdict_fits_its_schema() -> None:
    decided = CallDecided(CallId("c1"), "Read", "0" * 64, "allow")
    said = json.loads(wire.encode(wire.verdict(decided, "p" * 64, 3, 1_700_000_000_000_000)))
    assert said["type"] == "verdict"
    assert validator("Verdict").is_valid(said)
    assert not validator("Verdict").is_valid({**said, "decision": "maybe"})


def test_every_reference_leads_somewhere() -> None:
    made = document()
    for channel in made["channels"].values():
        for message in channel["messages"].values():
            name = message["$ref"].rsplit("/", 1)[1]
            assert name in made["components"]["messages"]
            assert name in made["components"]["schemas"]
