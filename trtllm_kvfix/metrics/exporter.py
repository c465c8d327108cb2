"""Shows the counts to Prometheus. Each rank serves its own on `metrics_port` plus its rank, so none waits for another.

Counts are collected when they are scraped, into a registry of our own: an application's other metrics stay apart.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.metrics.page_server import PageServer
from trtllm_kvfix.sections import PORT_MAX

PREFIX = "trtllm_kvfix_"


class CountsCollector(Collector):
    """`words` returns the state of each fix: {"staged-offsets-v1": "applied", ...}."""

    def __init__(self, rank: int, words: Callable[[], Mapping[str, str]]) -> None:
        self._rank = str(rank)
        self._words = words

    def collect(self) -> Iterator[Metric]:
        values = counters.read()
        for counter in counters.ALL:
            if isinstance(counter, counters.CounterByFix):
                yield self._of_fixes(counter)
                continue
            family = CounterMetricFamily if counter.kind == "counter" else GaugeMetricFamily
            metric = family(PREFIX + counter.name, counter.help, labels=["rank"])
            metric.add_metric([self._rank], values[counter.name])
            yield metric
        info = InfoMetricFamily(PREFIX + "fix", "What became of each fix in this process", labels=["rank", "fix"])
        for fix_id, word in self._words().items():
            info.add_metric([self._rank, fix_id], {"state": word})
        yield info

    def _of_fixes(self, counter: counters.CounterByFix) -> Metric:
        metric = CounterMetricFamily(PREFIX + counter.name, counter.help, labels=["rank", "fix"])
        for fix_id, value in (dict.fromkeys(self._words(), 0.0) | counter.by_fix()).items():
            metric.add_metric([self._rank, fix_id], value)
        return metric


def serve(port_first: int, rank: int, words: Callable[[], Mapping[str, str]], address: str = "0.0.0.0") -> PageServer:
    """Serve in a daemon thread; raise SettingsError if the port cannot be used."""
    port = port_first + rank
    if port > PORT_MAX:
        raise SettingsError(f"kvfix.metrics_port {port_first} leaves no port for rank {rank}: the last is {PORT_MAX}")
    registry = CollectorRegistry()
    registry.register(CountsCollector(rank, words))
    try:
        return PageServer(address, port, make_wsgi_app(registry))
    except OSError as error:
        raise SettingsError(
            f"metrics of rank {rank} cannot be served on port {port}: {error}; rank r listens on kvfix.metrics_port + "
            "r, so the ports above it must be free too"
        ) from error
