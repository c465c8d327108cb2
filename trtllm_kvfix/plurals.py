"""Words that agree with a number, for the sentences of reports."""


def form(count: int, singular: str, plural: str) -> str:
    """`form(1, "is", "are")` is "is"."""
    return singular if count == 1 else plural


def number_of(count: int, singular: str, plural: str = "") -> str:
    """`number_of(1, "race")` is "1 race", and `number_of(2_000, "race")` is "2,000 races"."""
    return f"{count:,} {form(count, singular, plural or singular + 's')}"
