"""The alerts of docs/metrics.md fire where they should and nowhere else, on pages as a rank serves them."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from trtllm_kvfix.metrics.exporter import PREFIX, CountsCollector

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
FIX = "token-budget"
SAMPLE = re.compile(r"^(\w+)\{(.*)\} ", re.MULTILINE)
# What Prometheus itself knows: whether it got a page from the rank that the page's own scrape configuration names.
UP = ("up", {"job": "trtllm-kvfix"})

Samples = list[tuple[str, dict[str, str], float]]


def alerts() -> list[str]:
    section = PAGE.partition("\n## What to alert on\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)


def scraped(word: str) -> Samples:
    """A page of a rank that runs with the fixes, which have done nothing yet."""
    registry = CollectorRegistry()
    registry.register(CountsCollector(0, lambda: {FIX: word}))
    samples: Samples = [(*UP, 1.0)]
    for name, labels in SAMPLE.findall(generate_latest(registry).decode()):
        value = 1.0 if name in (f"{PREFIX}enabled", f"{PREFIX}fix_info") else 0.0
        samples.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), value))
    return samples


def fires(expression: str, before: Samples, now: Samples) -> bool:
    """The part of PromQL that the page uses; anything else is an error here."""
    if found := re.fullmatch(r"absent\((\w+)\)", expression):
        return all(name != found[1] for name, _, _ in now)
    found = re.fullmatch(r"(increase\()?(\w+)(?:\{([^}]*)\})?(?:\[10m\]\))? (==|>) (\d+)", expression)
    assert found, expression
    increase, name, labels, relation, limit = found.groups()
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
    earlier = {(each, str(of)): value for each, of, value in before} if increase else {}
    values = [
        value - earlier.get((each, str(of)), 0.0)
        for each, of, value in now
        if each == name and wanted.items() <= of.items()
    ]
    return any(value == float(limit) if relation == "==" else value > float(limit) for value in values)


# What makes each expression of the page true: the fix's state, and which number has changed since, by how much.
CASES: Mapping[str, tuple[str, str, float]] = {
    "fix_faults_total": ("applied", "fix_faults_total", 1),
    'state="stood-down"': ("stood-down", "", 0),
    'state="displaced"': ("displaced", "", 0),
    'state="unknown"': ("unknown", "", 0),
    "table_mismatches_total": ("applied", "table_mismatches_total", 1),
    "canary_changed_blocks_total": ("applied", "canary_changed_blocks_total", 1),
    "canary_unfilled_blocks_total": ("applied", "canary_unfilled_blocks_total", 1),
    "bad_blocks_total": ("applied", "offload_bad_blocks_total", 1),
    "failed_copies_total": ("applied", "native_failed_copies_total", 1),
    "given_up": ("applied", "offload_given_up", 1),
    "enabled": ("off", "enabled", -1),
}


@pytest.mark.parametrize("part", CASES)
def test_an_alert_fires_where_it_should_and_no_other_does(part: str) -> None:
    word, changed, by = CASES[part]
    before = scraped("applied")
    assert [each for each in alerts() if fires(each, before, before)] == []
    now = [(name, labels, value + by * (name == PREFIX + changed)) for name, labels, value in scraped(word)]
    fired = [each for each in alerts() if fires(each, before, now)]
    assert len(fired) == 1 and part in fired[0]


def test_ranks_that_serve_nothing_are_named() -> None:
    (job,) = re.findall(r"- job_name: (\S+)", PAGE)
    down: Samples = [("up", {"job": job}, 0.0)]
    fired = [each for each in alerts() if fires(each, [], down)]
    assert fired == ['up{job="trtllm-kvfix"} == 0', "absent(trtllm_kvfix_fix_info)"]
    assert len(alerts()) == len(CASES) + len(fired), "each has its case here"


def test_the_page_of_the_host_tier_names_metrics_as_they_are_served() -> None:
    """Prometheus knows a counter by its name with `_total` alone."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "offload.md").read_text(encoding="utf-8")
    table = page.partition("\n## Numbers\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    served = {name.removeprefix(f"{PREFIX}offload_") for name, _, _ in scraped("applied")}
    assert len(named) > 30 and [name for name in named if name not in served] == []
    shortened = {name.removesuffix("_total") for name in served} - served
    assert shortened.isdisjoint(re.findall(r"`(\w+)`", page))
