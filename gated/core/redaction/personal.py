"""Rules for personal data, written with or without the spaces, dots and dashes that people put in: numbers by their check digits.

A national number without any separator is left alone: nine digits are too often an order or an invoice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gated.core.redaction.rules import Limit, Rule

_GAP: Final = r"[ .\-]?"
_SEPARATOR: Final = re.compile(r"[ .\-]")


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _runs(text: str, least: int, most: int, limit: Limit) -> Iterator[str | None]:
    """Every run of neighbouring groups that is `least` to `most` characters long without what parts them: a number may stand
    beside other words and numbers. None where the limit is reached.
    """
    groups = [group for group in _SEPARATOR.split(text) if group]
    for start in range(len(groups)):
        run = ""
        for position in range(start, len(groups)):
            run += groups[position]
            if len(run) > most:
                break
            if len(run) >= least:
                limit.left -= 1
                yield run if limit.left >= 0 else None


def is_card(text: str, limit: Limit) -> bool:
    """Holds 13 to 19 digits with the check digit of ISO/IEC 7812 (Luhn), and not one digit over and over."""
    return any(run is None or (_luhn(run) and len(set(run)) > 1) for run in _runs(text, 13, 19, limit))


_DOUBLED: Final = str.maketrans("0123456789", "0246813579")  # twice a digit, its own digits added


def _luhn(digits: str) -> bool:
    return sum(map(int, digits[-1::-2] + digits[-2::-2].translate(_DOUBLED))) % 10 == 0


def is_ssn(text: str, limit: Limit) -> bool:
    """A number that the United States may have issued."""
    digits = _digits(text)
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"


def is_iban(text: str, limit: Limit) -> bool:
    """Begins with the check digits of ISO 13616: the rearranged number is 1 modulo 97."""
    runs = _runs(text.upper(), 15, 34, limit)
    return any(run is None or (run[:2].isalpha() and run[2:4].isdigit() and _mod_97(run)) for run in runs)


_NUMBERED: Final = {ord(letter): str(number) for number, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 10)}


def _mod_97(plain: str) -> bool:
    return int((plain[4:] + plain[:4]).translate(_NUMBERED)) % 97 == 1


def is_phone(text: str, limit: Limit) -> bool:
    return 8 <= len(_digits(text)) <= 15


RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "email": (Rule(r"[\pL\pN._%+\-]+@[\pL\pN](?:[\pL\pN\-]*\.)+[\pL\pN\-]{2,}"),),
    "card": (Rule(rf"\b\d(?:{_GAP}\d){{12,}}\b", is_card),),
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
