"""The arms as bars. matplotlib is an extra, so it is looked for before the work and used after."""

from importlib.util import find_spec
from pathlib import Path

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.tools.bench.outcome import Report

SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"--plot is {path}: the file name ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise SettingsError(f"--plot is {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib, which is not installed: pip install 'trtllm-kvfix[report]'")


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
    figure.savefig(path)
