"""Rules for personal data, written with or without the spaces, dots and dashes that people put in: numbers by their check digits.

A national number without any separator is left alone: nine digits are too often an order or an invoice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gated.core.redaction.rules import Rule

_GAP: Final = r"[ .\-]?"
_SEPARATOR: Final = re.compile(r"[ .\-]")


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _runs(text: str) -> Iterator[str]:
    """Every run of neighbouring groups, without what parts them: a number may stand beside other words and numbers."""
    groups = [group for group in _SEPARATOR.split(text) if group]
    for start in range(len(groups)):
        for end in range(start + 1, len(groups) + 1):
            yield "".join(groups[start:end])


def is_card(text: str) -> bool:
    """Holds 13 to 19 digits with the check digit of ISO/IEC 7812 (Luhn), and not one digit over and over."""
    return any(13 <= len(run) <= 19 and len(set(run)) > 1 and _luhn(run) for run in _runs(text))


def _luhn(digits: str) -> bool:
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 * (number > 9) for number in doubled) % 10 == 0


def is_ssn(text: str) -> bool:
    """A number that the United States may have issued."""
    digits = _digits(text)
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"


def is_iban(text: str) -> bool:
    """Begins with the check digits of ISO 13616: the rearranged number is 1 modulo 97."""
    return any(run[:2].isalpha() and run[2:4].isdigit() and _mod_97(run.upper()) for run in _runs(text))


def _mod_97(plain: str) -> bool:
    return 15 <= len(plain) <= 34 and int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


def is_phone(text: str) -> bool:
    return 8 <= len(_digits(text)) <= 15


RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "email": (Rule(r"[\pL\pN._%+\-]+@[\pL\pN](?:[\pL\pN\-]*\.)+[\pL\pN\-]{2,}"),),
    "card": (Rule(rf"\b\d(?:{_GAP}\d){{12,18}}\b", is_card),),
    "ssn": (
        Rule(r"\b\d{3}[ .\-]\d{2}[ .\-]\d{4}\b", is_ssn),
        Rule(r"(?i)\b(?:ssn|social security)\W{0,3}(?:(?:no|number|nr)\W{0,3})?\d{9}\b", is_ssn),
    ),
    "iban": (Rule(rf"(?i)\b[A-Z]{{2}}\d{{2}}(?:{_GAP}[A-Z0-9]){{11,30}}\b", is_iban),),
    "phone": (
        Rule(r"(?:\+|\b00)[1-9](?:[ .\-/]?\(?\d\)?){7,14}\b", is_phone),
        Rule(r"(?:\(\d{3}\) ?|\b\d{3}[ .\-])\d{3}[ .\-]\d{4}\b", is_phone),
    ),
}
