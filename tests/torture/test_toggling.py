"""Fixes come and go while requests run: nobody dies, and once they are on for good, everything is right."""

import gc
import threading
from random import Random

import pytest

from tests.executor.test_graph_inputs import for_graphs
from tests.fixes.applied import only, standing_in
from tests.standin.serving import Server
from tests.torture.engines import SEED, SERVINGS, Serving, drawn, needed, threads_switch_often
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixSettings
from trtllm_kvfix.staging import in_use

FLIPS = 40
READ_BACK = FixSettings(read_back_every=1)  # samples are pending nearly always


def serve_until(over: threading.Event, server: Server, serving: Serving, failed: list[BaseException]) -> None:
    random, next_id = Random(f"{SEED} {serving} toggling"), 1
    try:
        while not over.is_set():
            made = drawn(server, random, 8, next_id, alike=False)
            answers = server.run(for_graphs(server, made) if serving.manager == "lora" else made)
            assert [each.error_msg for each in answers] == [None] * 8
            next_id += 8
    except BaseException as error:
        failed.append(error)


@pytest.mark.parametrize("serving", SERVINGS, ids=str)
def test_switching_under_load_ends_nothing(serving: Serving) -> None:
    ids = needed(serving.variant)
    with standing_in(serving.variant):
        registry, over = Registry(ALL), threading.Event()
        failed: list[BaseException] = []
        server = Server(serving.llm_args)
        load = threading.Thread(target=serve_until, args=(over, server, serving, failed))
        load.start()
        try:
            with threads_switch_often():
                for number in range(FLIPS):
                    chosen = ids if number % 2 == 0 else Random(f"{SEED} {number}").sample(ids, len(ids) // 2)
                    assert set(
                        registry.apply(only(*chosen, tuning=READ_BACK), Upstream(), at_last=True).applied
                    ) == set(chosen)
                    if number % 3 == 0:
                        assert registry.revert() == []
        finally:
            over.set()
            load.join()
        assert failed == [], f"TORTURE_SEED={SEED}"
        registry.apply(only(*ids), Upstream(), at_last=True)
        server.run([server.request(99_999, [1, 2, 3])])  # what earlier steps saw has been looked at behind this one
        # Memory of fixes that went ends here. On a GPU its end waits for streams that are held, and so would the loop.
        in_use._kept.clear()
        gc.collect()
        before = serving.corrupt(server)
        with serving.stall(server) as stall:
            made = drawn(server, Random(SEED), 12, 100_000, alike=False)
            server.run(for_graphs(server, made) if serving.manager == "lora" else made)
        assert stall.held > 0 and serving.corrupt(server) == before
        assert [each.first_error for each in registry.report().fixes if each.faults] == []
        server.close()
        assert registry.revert() == []
