"""A form made from a tool's JSON schema, and the arguments read back from it.

Simple properties become fields; all else (nested values, several types, texts with characters that cannot be seen) is edited as
JSON. Where the tool has no schema, or one that is no plain object, the arguments are edited as one piece of JSON.
INVARIANT: a field that was not touched gives back the very value that was there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from gated import strict_json
from gated.console.shown import editable
from gated.core.order.templates import UNSAFE

Kind = Literal["text", "lines", "integer", "number", "choice", "json"]

MOST: Final = 60  # fields; with more, JSON is easier
LINE: Final = 80  # characters from which a text gets an area
ABSENT: Final = "absent"  # the value of a choice that is left out: it is no JSON, so no other choice has it
WHOLE: Final = "args"  # the name of the one field where there is no form


class Field(Struct, frozen=True):
    """One property. `text` is what the field shows at first; `choices` are texts of JSON, with what people read."""

    name: str
    id: str
    kind: Kind
    text: str
    required: bool
    present: bool
    about: str = ""
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()


class Misread(Exception):
    """What was typed is no value; by the field's id, why."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


def fields(schema: Any, args: Mapping[str, Any]) -> list[Field]:
    """The fields of a form, or none where the arguments are edited as one piece."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return []
    names = [*properties, *(name for name in args if name not in properties)]
    if len(names) > MOST:
        return []
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set[str]()
    return [_field(f"f{n}", name, properties.get(name), args, name in needed) for n, name in enumerate(names)]


def _field(id_: str, name: str, schema: Any, args: Mapping[str, Any], required: bool) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    present, value = name in args, args.get(name)
    about = str(schema.get("title") or schema.get("description") or "")[:300]
    kind = _kind(schema, value, present)
    if kind == "choice":
        options = schema["enum"] if "enum" in schema else [True, False]
        choices = tuple((editable(option), option if isinstance(option, str) else editable(option)) for option in options)
        text = editable(value) if present else ABSENT
        return Field(name, id_, kind, text, required, present, about, choices=choices)
    text = "" if not present else str(value) if kind in ("text", "lines") else editable(value)
    return Field(name, id_, kind, text, required, present, about, _hint(schema, kind))


def _kind(schema: Mapping[str, Any], value: Any, present: bool) -> Kind:
    type_, options = schema.get("type"), schema.get("enum")
    if isinstance(options, list) and 0 < len(options) <= 50:
        return "choice" if not present or editable(value) in map(editable, options) else "json"
    if type_ == "boolean":
        return "choice" if not present or isinstance(value, bool) else "json"
    if type_ == "integer" and (not present or (isinstance(value, int) and not isinstance(value, bool))):
        return "integer"
    if type_ == "number" and (not present or (isinstance(value, int | float) and not isinstance(value, bool))):
        return "number"
    if type_ == "string" and (not present or (isinstance(value, str) and _typable(value))):
        return "lines" if present and (len(value) > LINE or "\n" in value) else "text"
    return "json"


def _typable(text: str) -> bool:
    """Whether a browser's field shows the text as it is and gives it back unchanged."""
    return UNSAFE.search(text.replace("\n", "")) is None


def _hint(schema: Mapping[str, Any], kind: Kind) -> str:
    said = {"minimum": "at least", "maximum": "at most", "minLength": "characters, at least", "maxLength": "characters, at most"}
    limits = [f"{words} {schema[key]}" for key, words in said.items() if isinstance(schema.get(key), int | float)]
    if isinstance(schema.get("pattern"), str):
        limits.append(f"matches {schema['pattern'][:80]}")
    return ", ".join([*(["as JSON"] if kind == "json" else []), *limits])


def read(made: list[Field], args: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    """The arguments as the form was sent. Raises `Misread`."""
    if not made:
        return _whole(typed.get(WHOLE, ""))
    found, errors = dict(args), dict[str, str]()
    for field in made:
        text = typed.get(field.id, "")
        if typed.get(f"{field.id}.out") or (field.kind == "choice" and text == ABSENT):
            found.pop(field.name, None)
        elif text != field.text:
            try:
                found[field.name] = _value(field, text)
            except ValueError as error:
                errors[field.id] = f"{field.name}: {error}"
    if errors:
        raise Misread(errors)
    return found


def _value(field: Field, text: str) -> Any:
    if field.kind in ("text", "lines"):
        return text
    try:
        value = strict_json.parse_value(text.encode())
    except strict_json.BadJson as error:
        raise ValueError(f"not {'JSON' if field.kind == 'json' else 'a number'}: {error}") from error
    if field.kind == "choice" and text not in {choice for choice, _ in field.choices}:
        raise ValueError("none of the choices")
    if field.kind == "integer" and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError("not a whole number")
    if field.kind == "number" and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise ValueError("not a number")
    return value


def _whole(text: str) -> dict[str, Any]:
    try:
        value = strict_json.parse_value(text.encode())
    except strict_json.BadJson as error:
        raise Misread({WHOLE: f"not JSON: {error}"}) from error
    if not isinstance(value, dict):
        raise Misread({WHOLE: "the arguments are a JSON object: {…}"})
    return value


def redacted(value: Any, path: str = "") -> list[str]:
    """Where a value has what the log put in the place of something that it must not hold."""
    if isinstance(value, dict):
        if value.keys() == {"redacted", "sha256"}:
            return [path or "the arguments"]
        return [where for key, item in value.items() for where in redacted(item, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [where for number, item in enumerate(value) for where in redacted(item, f"{path}[{number}]")]
    return []
