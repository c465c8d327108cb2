"""Words that agree with a number, and words in a row, for the sentences of reports."""

from collections.abc import Iterable


def form(count: int, singular: str, plural: str) -> str:
    """`form(1, "is", "are")` is "is"."""
    return singular if count == 1 else plural


def number_of(count: int, singular: str, plural: str = "") -> str:
    """`number_of(1, "race")` is "1 race", and `number_of(2_000, "race")` is "2,000 races"."""
    return f"{count:,} {form(count, singular, plural or singular + 's')}"


def listed(words: Iterable[str]) -> str:
    """`listed(["a", "b", "c"])` is "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
