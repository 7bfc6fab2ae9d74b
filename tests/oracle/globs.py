"""Globs by plain backtracking over the text. order.md, Patterns."""

from __future__ import annotations

from functools import cache


def glob_matches(glob: str, text: str) -> bool:
    """The whole string; every `{a,b}` is tried as a glob of its own."""
    return any(_match(alternative, text) for alternative in expand(glob))


def expand(glob: str) -> list[str]:
    start = glob.find("{")
    if start < 0:
        if "}" in glob:
            raise ValueError(f"unbalanced brace in glob `{glob}`")
        return [glob]
    depth, parts, last = 0, [], start + 1
    for position in range(start, len(glob)):
        letter = glob[position]
        depth += (letter == "{") - (letter == "}")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(glob[last:position])
            last = position + 1
        if depth == 0:
            tails = expand(glob[last:])
            return [glob[:start] + middle + tail for part in parts for middle in expand(part) for tail in tails]
    raise ValueError(f"unbalanced brace in glob `{glob}`")


def _match(glob: str, text: str) -> bool:
    @cache
    def at(g: int, t: int) -> bool:
        if g == len(glob):
            return t == len(text)
        # `src/**/*.rs` matches `src/main.rs` too: a `**/` that is a whole component may be nothing, where one begins
        begins = (g == 0 or glob[g - 1] == "/") and (t == 0 or text[t - 1] == "/")
        if begins and glob.startswith("**/", g) and at(g + 3, t):
            return True
        if glob[g] == "*":
            return at(g + 1, t) or (t < len(text) and at(g, t + 1))
        if t == len(text):
            return False
        if glob[g] == "?":  # one character other than `/`
            return text[t] != "/" and at(g + 1, t + 1)
        if glob[g] == "[":
            end = class_end(glob, g)
            return in_class(glob[g + 1 : end], text[t]) and at(end + 1, t + 1)
        return glob[g] == text[t] and at(g + 1, t + 1)

    return at(0, 0)


def class_end(glob: str, start: int) -> int:
    end = glob.find("]", start + 2 if glob.startswith("[!", start) else start + 1)
    if end < 0:
        raise ValueError(f"unclosed `[` in glob `{glob}`")
    return end


def in_class(body: str, letter: str) -> bool:
    negated, body = body.startswith("!"), body.removeprefix("!")
    found, position = False, 0
    while position < len(body):
        if position + 2 < len(body) and body[position + 1] == "-":
            found, position = found or body[position] <= letter <= body[position + 2], position + 3
        else:
            found, position = found or body[position] == letter, position + 1
    return found != negated


def check_glob(glob: str) -> None:
    """A malformed glob is a load error."""
    for alternative in expand(glob):
        position = alternative.find("[")
        while position >= 0:
            position = alternative.find("[", class_end(alternative, position) + 1)
