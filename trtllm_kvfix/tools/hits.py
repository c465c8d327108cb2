"""The table of what was decided of hits, which `status` and `replay` show."""

from collections.abc import Iterable

from rich.table import Table

from trtllm_kvfix.offload.worth import HitClass


def table_of_hits(whose: str, hits: Iterable[tuple[str, HitClass]]) -> Table:
    """The times are averages of the estimates, in which the latest count most."""
    shown = Table(box=None, title="hits by the tokens that they add, and what they would take", title_justify="left")
    for column in (whose, "tier", "tokens, up to", "hits", "loaded", "to load", "to compute"):
        shown.add_column(column, justify="left" if column == "tier" else "right")
    for name, each in hits:
        limit = "any" if each.tokens_max is None else f"{each.tokens_max:,}"
        times = ("-" if ms is None else f"{ms:,.1f} ms" for ms in (each.load_ms, each.compute_ms))
        shown.add_row(name, each.tier, limit, f"{each.hits:,}", f"{each.loaded:,}", *times)
    return shown
