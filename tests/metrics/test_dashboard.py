"""The dashboard asks for numbers that are exported, and for nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtllm_kvfix.metrics.exporter import CountsCollector

FILE = Path(__file__).resolve().parents[2] / "docs" / "dashboard.json"
LABELS = {"job", "instance", "rank", "fix", "state"}  # the first two are Prometheus's own
# Names in PromQL besides those of metrics, as far as the dashboard uses them.
FUNCTIONS = {"sum", "rate", "deriv", "by", "label_values"}


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(FILE.read_text())


FIRST = ("fix_info", "fix_info", "enabled", "fix_info")


def exported() -> set[str]:
    """Names of the samples, as a scrape shows them."""
    families = CountsCollector(0, lambda: {"token-budget": "applied"}).collect()
    return {sample.name for family in families for sample in family.samples}


def names_in(expression: str) -> tuple[set[str], set[str]]:
    """Metrics, and labels. Whatever is neither of them nor a function that is known counts as a metric."""
    labels = set(re.findall(r"([a-z_]+)\s*=~?", expression))
    for grouping in re.findall(r"by \(([^)]*)\)", expression):
        labels.update(name.strip() for name in grouping.split(","))
    rest = re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", " ", expression)
    if rest.startswith("label_values("):
        rest, label = rest.removesuffix(")").rsplit(",", 1)
        labels.add(label.strip())
    return set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", rest)) - FUNCTIONS, labels


def expressions(dashboard: Any) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_every_expression_names_metrics_and_labels_that_exist(dashboard: Any) -> None:
    known = exported()
    for expression in expressions(dashboard):
        metrics, labels = names_in(expression)
        assert metrics and metrics <= known, expression
        assert labels <= LABELS, expression


def test_every_number_that_is_served_is_on_a_panel(dashboard: Any) -> None:
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    shown = {name for expression in targets for name in names_in(expression)[0]}
    assert any("_offload_remote_" in name for name in exported())
    assert exported() - shown == set()


def test_the_first_row_shows_fixes_that_are_not_in_place(dashboard: Any) -> None:
    """In the order of the screen: nobody scrolls down to see that a fix is gone."""
    panels = sorted(dashboard["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    assert panels == dashboard["panels"]
    first = [target["expr"] for panel in panels[1:5] for target in panel["targets"]]
    assert [names_in(each)[0] for each in first] == [{f"trtllm_kvfix_{name}"} for name in FIRST]
    assert re.findall(r'state="([^"]*)"', " ".join(first)) == ["displaced", "stood-down"]
    assert first[2].endswith("} == 0")


def test_a_metric_or_label_that_does_not_exist_is_noticed() -> None:
    assert names_in('rate(trtllm_kvfix_gone_total{rank="0"}[5m])') == ({"trtllm_kvfix_gone_total"}, {"rank"})
    assert names_in("sum by (host) (up)") == ({"up"}, {"host"})


def test_counters_are_asked_for_as_rates(dashboard: Any) -> None:
    for expression in expressions(dashboard):
        for name in re.findall(r"\w+_total", expression):
            assert f"rate({name}" in expression, expression


def test_panels_have_ids_of_their_own_and_places_that_do_not_overlap(dashboard: Any) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 12
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        taken = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert cells.isdisjoint(taken) and at["x"] + at["w"] <= 24, panel["title"]
        cells |= taken
        references = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(references)) == len(references)


def test_every_panel_asks_the_data_source_that_is_chosen(dashboard: Any) -> None:
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", FILE.read_text())) - {"__rate_interval"}
    assert used == variables


def test_the_rows_of_the_fixes_come_first_and_panels_do_not_overlap(dashboard: Any) -> None:
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows[:2] == ["Are the fixes in place?", "The fixes"]
    below = 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] == 0:
            assert place["y"] >= below, panel["title"]
            below = place["y"] + place["h"]
