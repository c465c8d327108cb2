"""Counts that cost the hot path nothing but a lock, and their way to Prometheus."""

import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from tests.ports import free_ports
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.metrics.exporter import serve


def test_counting_loads_no_library() -> None:
    code = "import sys, trtllm_kvfix.metrics.counters; print('prometheus_client' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_no_count_is_lost_between_threads() -> None:
    counter = counters.Counter("under_test", "of this test")

    def count() -> None:
        for _ in range(20_000):
            counter.add()

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_interval)
    assert counter.value == 80_000


def test_counters_do_not_shrink_and_gauges_may() -> None:
    with pytest.raises(ValueError, match="counts up only, got -1"):
        counters.Counter("under_test", "").add(-1)
    gauge = counters.Counter("under_test", "", "gauge")
    gauge.add(-1)
    assert gauge.value == -1


def test_every_counter_is_listed_once_and_explained() -> None:
    names = [counter.name for counter in counters.ALL]
    assert len(names) == len(set(names)) >= 12
    for counter in counters.ALL:
        assert getattr(counters, counter.name) is counter
        assert counter.help


def test_counts_kept_elsewhere_are_fetched_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_refreshers", [])
    before = counters.staged_bytes.value
    counters.before_reading(lambda: counters.staged_bytes.add(5))
    assert counters.read()["staged_bytes"] == before + 5


def test_each_rank_serves_its_own_counts_on_its_own_port() -> None:
    first = free_ports(2)
    servers = [serve(first, rank, lambda: {"token-budget": "applied"}, "127.0.0.1") for rank in (0, 1)]
    counters.ring_waits.add(3)
    try:
        for rank in (0, 1):
            page = urllib.request.urlopen(f"http://127.0.0.1:{first + rank}/metrics").read().decode()
            assert f'trtllm_kvfix_ring_waits_total{{rank="{rank}"}} {counters.ring_waits.value}' in page
            assert f'trtllm_kvfix_fix_info{{fix="token-budget",rank="{rank}",state="applied"}} 1.0' in page
            for counter in counters.ALL:
                assert f"# HELP trtllm_kvfix_{counter.name}" in page
    finally:
        for server in servers:
            server.stop()


def test_port_that_is_taken_is_an_error_that_says_how_ports_are_chosen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"metrics of rank 2 cannot be served on port {port}: .*metrics_port"):
            serve(port - 2, 2, dict, "127.0.0.1")


def test_ranks_beyond_the_last_port_are_refused() -> None:
    with pytest.raises(SettingsError, match="leaves no port for rank 6"):
        serve(65530, 6, dict)
