"""Draw the sweep's curve."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_kvfix.tools.pictures import save
from trtllm_kvfix.tools.replay.labels import admission_of, pool_of, tier_of
from trtllm_kvfix.tools.replay.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra; Figure alone needs no display and no global state

    shape = outcomes[0].shape
    size = shape.bytes_per_block
    hosts = [outcome.shape.blocks_host * (1 if size is None else size / 1024**3) for outcome in outcomes]
    total = [100 * outcome.tokens.hit_rate for outcome in outcomes]
    primary = [100 * (outcome.tokens.hit_rate - outcome.tokens.hit_rate_host) for outcome in outcomes]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(hosts, primary, alpha=0.25, label="from primary")
    axes.fill_between(hosts, primary, total, alpha=0.25, label="from host")
    axes.plot(hosts, total, marker="o", label="reused")
    _draw_bounds(axes, hosts, outcomes)
    unit = "blocks" if size is None else "GiB"
    axes.set(xlabel=f"host tier, {unit}", ylabel="prompt tokens reused, %")
    tier = tier_of(shape)
    subtitle = f"{tier[0].upper()}{tier[1:]}\n{pool_of(shape)}; {admission_of(outcomes[0].admission)}"
    axes.set_title(f"{title}\n{subtitle}", fontsize="medium")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=min(hosts))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save(figure, path)


def _draw_bounds(axes: "Axes", hosts: Sequence[float], outcomes: Sequence[Outcome]) -> None:
    bounded = [(outcome, outcome.bounds) for outcome in outcomes if outcome.bounds is not None]
    if not bounded:
        return
    clairvoyant = [100 * outcome.rate(bounds.clairvoyant) for outcome, bounds in bounded]
    ceiling = max(100 * outcome.rate(bounds.ceiling) for outcome, bounds in bounded)
    axes.plot(
        hosts, clairvoyant, linestyle="--", marker=".", color="0.35", label="at most (a clairvoyant cache of that size)"
    )
    axes.axhline(ceiling, linestyle=":", color="0.35", label="ceiling (a cache without limit)")
