"""An operator turns switches and sees priorities, metrics and the line in the log; imports stay light."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import fresh
from trtllm_kvfix.metrics import counters

from .conftest import Bench, MakeBench, serve_alone
from .upstream_double import Request, RequestData


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


def serve(bench: Bench, number: int, tokens: list[int]) -> int:
    loaded_tokens = serve_alone(bench, Request(number, tokens))
    assert bench.executor.corrupt == []
    return loaded_tokens


def test_switches_turn_each_direction_off_and_on_and_empty_the_tier(make_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "switches.yaml"
    bench = make_bench(control_file=file)
    file.write_text("store: off\n")
    assert [serve(bench, number, prompt(1)) for number in (1, 2)] == [0, 0], "nothing is stored"
    file.write_text("{store: on}\n")
    assert [serve(bench, number, prompt(1)) for number in (3, 4)] == [0, 20]
    file.write_text("load: off\n")
    bench.scheduler.build_connector_meta(None)
    assert serve(bench, 5, prompt(1)) == 0
    file.unlink()
    bench.scheduler.build_connector_meta(None)
    assert serve(bench, 6, prompt(1)) == 20
    file.write_text("drop: 1\n")
    bench.scheduler.build_connector_meta(None)
    assert bench.index.stats().free == bench.index.slots
    assert [serve(bench, number, prompt(1)) for number in (7, 8)] == [0, 20], "once, not in every iteration"
    file.write_text("drop: 22\n")
    bench.scheduler.build_connector_meta(None)
    assert serve(bench, 9, prompt(1)) == 0


def test_blocks_of_low_priority_and_those_behind_them_are_not_stored(make_bench: MakeBench) -> None:
    bench = make_bench(offload_priority_min=40)
    request = Request(1, prompt(1))
    bench.scheduler.get_num_new_matched_tokens(request, 0)
    bench.scheduler.update_state_after_alloc(request, list(range(6)))
    data = RequestData(1, request.tokens, list(range(6)), 24, 0, priorities=[50, 40, 39, 60, 60, 60])
    (job,) = bench.scheduler.side.build_connector_meta(report_of(data)).stores
    assert job.blocks == (0, 1)


def test_priorities_are_told_for_the_blocks_that_are_added(make_bench: MakeBench) -> None:
    bench = make_bench(offload_priority_min=40)
    side, request = bench.scheduler.side, Request(1, prompt(1))
    bench.scheduler.get_num_new_matched_tokens(request, 0)
    bench.scheduler.update_state_after_alloc(request, [0, 1])
    first = RequestData(1, request.tokens, [0, 1], 0, 8, priorities=[50, 50])
    assert side.build_connector_meta(report_of(first)).stores == ()
    later = RequestData(1, [], [2, 3], 16, 8, priorities=[50, 10])
    (job,) = side.build_connector_meta(SimpleNamespace(new_requests=[], cached_requests=[later])).stores
    assert job.blocks == (0, 1, 2), "the last is of low priority"


def report_of(data: RequestData) -> object:

    return SimpleNamespace(new_requests=[data], cached_requests=[])


def test_numbers_add_up(make_bench: MakeBench) -> None:
    bench, before = make_bench(), counters.read()
    serve(bench, 1, prompt(1))
    serve(bench, 2, prompt(1))
    bench.executor.submit(Request(3, prompt(1)))
    bench.executor.run()
    after = counters.read()
    grown = {name: after[name] - before[name] for name in after if name.startswith("offload_")}
    assert grown["offload_prompt_tokens"] == 72
    assert grown["offload_host_hit_tokens"] == 20
    assert grown["offload_device_hit_tokens"] == 20
    assert grown["offload_host_hits"] == 1
    assert grown["offload_stored_blocks"] == 6
    assert grown["offload_loaded_blocks"] == 5
    assert grown["offload_stored_bytes"] == 6 * 128
    assert grown["offload_loaded_bytes"] == 5 * 128
    assert grown["offload_store_seconds"] > 0 and grown["offload_load_seconds"] > 0
    assert grown["offload_errors"] == 0
    assert after["offload_pool_blocks"] == 256
    assert after["offload_pool_free_blocks"] == 250
    assert after["offload_pinned_bytes"] == after["offload_pool_bytes"] == 256 * 128


def test_a_line_every_so_many_requests_says_whether_it_helps(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench(log_every_requests=2)
    with caplog.at_level(logging.INFO, "trtllm_kvfix.offload"):
        serve(bench, 1, prompt(1))
        serve(bench, 2, prompt(1))
    (line,) = [line for line in caplog.messages if line.startswith("2 requests")]
    assert line == (
        "2 requests: of their prompts 0.0% were on the device, 41.7% came from the host tier; 6 blocks stored, "
        "5 loaded, 0 transfers failed; 250 of 256 host blocks free"
    )


def test_importing_it_needs_neither_torch_nor_tensorrt_llm() -> None:
    code = (
        "import sys, trtllm_kvfix.offload as o; assert 'trtllm_kvfix.native' not in sys.modules;"
        "o.KvfixOffloadScheduler, o.KvfixOffloadWorker; assert not {'torch', 'tensorrt_llm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("place", ["connectors.kv_cache_connector", "kv_cache_connector"])
def test_inside_tensorrt_llm_the_classes_are_its_own_kind(place: str, tmp_path: Path) -> None:
    module = tmp_path / "tensorrt_llm" / "_torch" / "pyexecutor" / Path(*place.split("."))
    module.parent.mkdir(parents=True)
    for folder in [module.parent, *module.parent.parents]:
        if tmp_path in folder.parents:
            (folder / "__init__.py").touch()
    module.with_suffix(".py").write_text(
        "class KvCacheConnectorScheduler: pass\n"
        "class KvCacheConnectorWorker: pass\n"
        "class KvCacheConnectorManager:\n"
        "    def get_finished(self): pass\n"
    )
    code = (
        "import tensorrt_llm, importlib, trtllm_kvfix.offload as o;"
        f"m = importlib.import_module('tensorrt_llm._torch.pyexecutor.{place}');"
        "assert issubclass(o.KvfixOffloadScheduler, m.KvCacheConnectorScheduler);"
        "assert issubclass(o.KvfixOffloadWorker, m.KvCacheConnectorWorker)"
    )
    done = fresh.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
