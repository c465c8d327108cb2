"""The arms as bars."""

from pathlib import Path

from trtllm_kvfix.tools.bench.outcome import Report
from trtllm_kvfix.tools.pictures import save


def plot(report: Report, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra; Figure alone needs no display and no global state

    arms = report.arms[::-1]
    names = [arm.name for arm in arms]
    figure = Figure(figsize=(10, 0.36 * len(arms) + 1.4), layout="constrained")
    throughput, first = figure.subplots(1, 2, sharey=True)
    throughput.barh(names, [arm.tokens_per_s for arm in arms])
    throughput.set(xlabel="tokens per second", title=report.device)
    first.barh(names, [arm.first_token_ms_p95 for arm in arms], alpha=0.35, label="95 %")
    first.barh(names, [arm.first_token_ms_median for arm in arms], label="median")
    first.set(xlabel="time to the first token, ms", title=f"{report.requests} requests, {report.rate:g} a second")
    first.legend()
    for axes in (throughput, first):
        axes.grid(visible=True, axis="x", alpha=0.3)
    save(figure, path)
