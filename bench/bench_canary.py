"""Measures what the canary takes from a step: the loop's thread, and the stream that its kernel stands on.

gbps is what the kernel digests, and beside it what a copy within the device reads and writes: the memory's speed.
Blocks do not change. Run it on a GPU (--device cuda); on the simulated device all but the loop's time means nothing.

A prompt of 4,096 blocks is found whole: hit_us is the call at its admission, and step_us one of the steps behind it
that look at those blocks, spread_over so many.

Beside a manager of upstream's (V1, and V2 with a host tier), every request generates a token in each step. looks_us is
the part that does not depend on the requests, and end_us what each takes at its end, all in one step. Caches and
requests are doubles in Python; slots are so small that looks cost the host alone.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import RESULTS, Row, Summary, quiet_garbage_collector, report

from trtllm_kvfix.canary.canary import BLOCKS_PER_STEP, OBSERVES, Canary, CanaryReport, Pool
from trtllm_kvfix.canary.fills import Write
from trtllm_kvfix.managers import watched_v1, watched_v2
from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import on_stream

TOKENS_PER_BLOCK, LAYERS = 32, 64
KIB, MIB = 1 << 10, 1 << 20
HIT_BLOCKS, HIT_KIB = 4096, (16, 1024)
SERVED_LAYERS, SLOT_BYTES = 32, 32 << 9
WARM_UP = 100  # until looks go round
LAUNCHES = 4  # one behind the other, so that a launch costs nothing


def rows(device_name: str, block_mib: int, blocks_per_step: int, steps: int) -> list[Row]:
    device = open_device(device_name)
    stream = device.create_stream()
    blocks = 4 * blocks_per_step
    memory = device.empty((blocks * block_mib * MIB,), "uint8")
    pool = Pool(memory.address, block_mib * MIB, range(LAYERS))
    canary = Canary(device, stream, [pool], TOKENS_PER_BLOCK, blocks_per_step, seed=0)
    end = blocks * TOKENS_PER_BLOCK
    canary.admitted(1, list(range(blocks)), 0)
    canary.step([Write(1, list(range(blocks)), 0, end, end)])
    while canary.report().blocks_taken < blocks:  # a burst is spread over steps
        device.synchronize(stream)
        canary.step([])
    loop_us, stream_us = [], []
    with quiet_garbage_collector():
        for _ in range(steps):
            begin = perf_counter()
            canary.step([])
            enqueued = perf_counter()
            device.synchronize(stream)
            loop_us.append((enqueued - begin) * 1e6)
            stream_us.append((perf_counter() - enqueued) * 1e6)
    require_silent(canary.report())
    canary.close()
    device.destroy_stream(stream)
    name = f"{block_mib} MiB"
    return [
        Row(name, blocks_per_step, "canary", "loop_us", Summary.of(loop_us)),
        Row(name, blocks_per_step, "canary", "stream_us", Summary.of(stream_us)),
    ]


def require_silent(found: CanaryReport, has_looked: bool = True) -> None:
    if found.counts or found.state != OBSERVES or not has_looked:
        raise RuntimeError(f"blocks have not changed, but the canary {found.state}: {found}")


def hits(device_name: str, block_kib: int, rounds: int) -> list[Row]:
    device = open_device(device_name)
    stream = device.create_stream()
    memory = device.empty((HIT_BLOCKS * block_kib * KIB,), "uint8")
    pool = Pool(memory.address, block_kib * KIB, range(SERVED_LAYERS))
    canary = Canary(device, stream, [pool], TOKENS_PER_BLOCK, BLOCKS_PER_STEP, seed=0)
    slots, end = list(range(HIT_BLOCKS)), HIT_BLOCKS * TOKENS_PER_BLOCK
    canary.admitted(0, slots, 0)
    canary.step([Write(0, slots, 0, end, end)])

    def steps_until(blocks: int, seen: Callable[[CanaryReport], int]) -> list[float]:
        took = []
        while seen(canary.report()) < blocks:
            begin = perf_counter()
            canary.step([])
            took.append((perf_counter() - begin) * 1e6)
            device.synchronize(stream)
        return took

    steps_until(HIT_BLOCKS, attrgetter("blocks_taken"))
    hit_us, step_us = [], []
    with quiet_garbage_collector():
        for number in range(1, rounds + 1):
            begin = perf_counter()
            canary.admitted(number, slots, end)
            hit_us.append((perf_counter() - begin) * 1e6)
            step_us.append(steps_until(number * HIT_BLOCKS, lambda found: found.blocks_compared.get("reused", 0)))
            canary.released(number)
    found = canary.report()
    require_silent(found, found.missed == 0)
    canary.close()
    device.destroy_stream(stream)
    name = f"a hit of {HIT_BLOCKS} blocks of {block_kib} KiB"
    metrics = {"hit_us": hit_us, "step_us": [*chain(*step_us)], "spread_over": [float(len(each)) for each in step_us]}
    return [Row(name, TOKENS_PER_BLOCK, "canary", metric, Summary.of(values)) for metric, values in metrics.items()]


class Generating:
    """A request and its cache, as the managers and the loop with overlap show them: two positions ahead."""

    is_dummy_request, is_active, context_remaining_length, is_first_context_chunk = False, True, 0, True

    def __init__(self, request_id: int, blocks: int) -> None:
        prompt = TOKENS_PER_BLOCK + request_id % TOKENS_PER_BLOCK  # so that blocks do not end in the same step
        self.py_request_id, self.context_current_position, self.num_committed_tokens = request_id, prompt, prompt
        self.tokens, self.capacity = prompt + 1, prompt + 1
        self.slots = np.arange(request_id * blocks, (request_id + 1) * blocks, dtype=np.int32)

    def get_num_tokens(self, _beam: int) -> int:
        return self.tokens

    def get_base_page_indices(self, _group: int) -> Any:
        return self.slots

    def schedule(self) -> None:
        self.tokens += self.capacity > self.tokens
        self.capacity += 1


class Served:
    """Requests that generate, and their blocks."""

    def __init__(self, device: Device, requests: int, steps: int) -> None:
        self.device, blocks = device, 3 + steps // TOKENS_PER_BLOCK
        self.requests = [Generating(number, blocks) for number in range(requests)]
        self.memory = device.empty((requests * blocks * SLOT_BYTES,), "uint8")

    def step(self) -> Any:
        """The batch."""
        for each in self.requests:
            each.schedule()
        return SimpleNamespace(context_requests=[], generation_requests=list(self.requests))


class BesideV1:
    name = "beside V1"

    def __init__(self, stream: int, served: Served) -> None:
        self._served = {each.py_request_id: each for each in served.requests}
        pool = SimpleNamespace(
            shape=(1 << 20, SERVED_LAYERS, 1, 1), data_ptr=lambda: served.memory.address,
            stride=lambda: (SLOT_BYTES // 2,), element_size=lambda: 2,
        )  # fmt: skip
        self.get_unique_primary_pool = lambda: pool
        manager = SimpleNamespace(
            tokens_per_block=TOKENS_PER_BLOCK, max_attention_window_vec=[1 << 20], max_draft_len=0, impl=self,
            max_blocks_per_seq=1,
            _stream=SimpleNamespace(cuda_stream=stream),
        )  # fmt: skip
        self.watched = watched_v1.watch(manager, Settings(canary="observe"), has_host=False)
        for each in served.requests:
            each.context_current_position = 0
        self.hear(SimpleNamespace(context_requests=served.requests, generation_requests=[]))
        for each in served.requests:
            each.context_current_position = each.num_committed_tokens
        self.canary = self.watched.canary

    def get_batch_cache_block_ids(self, request_ids: list[int], _window: int) -> list[list[list[int]]]:
        served = (self._served[request_id] for request_id in request_ids)
        return [[one.slots[: -(-one.capacity // TOKENS_PER_BLOCK)].tolist()] for one in served]

    def get_last_block_id(self, request_id: int) -> int:
        one = self._served[request_id]
        return int(one.slots[(one.capacity - 1) // TOKENS_PER_BLOCK])

    def hear(self, batch: Any) -> None:
        self.watched.begin_iteration(batch)
        self.watched.has_blocks(batch)

    def end(self, request: Generating) -> None:
        self.watched.ends(request.py_request_id)


class BesideV2:
    name = "beside V2"

    def __init__(self, stream: int, served: Served) -> None:
        buffers = [SimpleNamespace(buffer_ids=[SimpleNamespace(layer_id=layer) for layer in range(SERVED_LAYERS)])]
        variant = SimpleNamespace(layer_group_id=0, coalesced_buffers=buffers)
        pool = SimpleNamespace(base_address=served.memory.address, slot_bytes=SLOT_BYTES)
        group = SimpleNamespace(pools=[pool], slot_desc=SimpleNamespace(variants=[variant]))
        layers = [SimpleNamespace(sliding_window_size=None)] * SERVED_LAYERS
        manager = SimpleNamespace(
            tokens_per_block=TOKENS_PER_BLOCK, kv_cache_map={each.py_request_id: each for each in served.requests},
            kv_cache_manager_py_config=SimpleNamespace(layers=layers), _stream=SimpleNamespace(cuda_stream=stream),
            impl=SimpleNamespace(layer_grouping=[list(range(SERVED_LAYERS))], pool_group_descs=[group]),
        )  # fmt: skip
        self._caches = manager.kv_cache_map
        self.watched = watched_v2.watch(manager, Settings(canary="observe"), served.device, knows_all=False)
        (self.canary,) = [group.canary for group in self.watched.groups]
        self.hear = self.watched.begin_iteration

    def end(self, request: Generating) -> None:
        self.watched.ends(request.py_request_id)
        del self._caches[request.py_request_id]


def beside(manager: type[BesideV1 | BesideV2], device_name: str, requests: int, steps: int) -> list[Row]:
    device = open_device(device_name)
    stream = device.create_stream()
    times: dict[str, list[float]] = {"loop_us": [], "looks_us": [], "end_us": []}

    def timed(metric: str, call: Callable[[], None]) -> None:
        begin = perf_counter()
        call()
        times[metric].append((perf_counter() - begin) * 1e6)

    with quiet_garbage_collector(), on_stream(device, stream):
        served = Served(device, requests, steps + WARM_UP)
        server = manager(stream, served)
        for number in range(WARM_UP + steps):
            if number == WARM_UP:
                times.update({metric: [] for metric in times})
            batch = served.step()
            timed("loop_us", partial(server.hear, batch))
            device.synchronize(stream)
            timed("looks_us", partial(server.canary.step, (), ()))
            device.synchronize(stream)
        for each in served.requests:
            timed("end_us", partial(server.end, each))
    found = server.canary.report()
    require_silent(found, found.blocks_taken >= requests)
    server.watched.close()
    device.destroy_stream(stream)
    return [Row(server.name, requests, "canary", metric, Summary.of(values)) for metric, values in times.items()]


def rates(device_name: str, block_mib: int, memory_mib: int, rounds: int) -> list[Row]:
    """Of a kernel over more blocks than caches hold, and of a copy of the same bytes."""
    device = open_device(device_name)
    stream = device.create_stream()
    count, slot_bytes = memory_mib // block_mib, block_mib * MIB
    source, target = (device.empty([count * slot_bytes], "uint8") for _ in range(2))
    pool, slots = Pool(source.address, slot_bytes, range(LAYERS)), list(range(count))
    ring = device.digest_ring(stream, [pool.digested], LAUNCHES * count, 1)

    def digest() -> None:
        ring.send(slots)

    def copy() -> None:
        device.copy(target.address, source.address, count * slot_bytes, stream)

    found = []
    for name, enqueue, moved in (("digest", digest, 1), ("copy", copy, 2)):
        gbps = []
        for _ in range(rounds):
            device.synchronize(stream)
            begin = perf_counter()
            for _ in range(LAUNCHES):
                enqueue()
            device.synchronize(stream)
            took = perf_counter() - begin
            ring.arrived()
            gbps.append(LAUNCHES * moved * count * slot_bytes / took / 1e9)
        found.append(Row(f"{block_mib} MiB", count, name, "gbps", Summary.of(gbps)))
    device.destroy_stream(stream)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--beside", action="store_true", help="only these, in which block_size is the requests")
    parser.add_argument("--hits", action="store_true", help="only these")
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    args = parser.parse_args()
    steps = 10 if args.quick else args.steps
    found = (row for mib in (1, 2, 4, 8) for number in (1, 8) for row in rows(args.device, mib, number, steps))
    memory_mib, rounds = (16, 3) if args.quick else (2048, 20)
    of_kernel = (row for mib in (1, 2, 4, 8) for row in rates(args.device, mib, memory_mib, rounds))
    sizes = [(kind, requests) for kind in (BesideV1, BesideV2) for requests in (8, 64, 256)]
    of_servers = (row for kind, requests in sizes for row in beside(kind, args.device, requests, steps))
    of_hits = (row for kib in HIT_KIB[: 1 if args.quick else None] for row in hits(args.device, kib, steps // 5))
    chosen = of_servers if args.beside else of_hits if args.hits else chain(found, of_kernel, of_servers, of_hits)
    report("canary.csv", chosen, args.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
