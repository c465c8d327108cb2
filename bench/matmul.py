"""Measures what copies cost compute: matrix products alone and beside them. Needs torch."""

from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np

PRODUCTS = 16  # in a stretch: about 20 ms on an H200


class Matmul:
    """Large products on a stream of their own, one behind the other without a gap, each with its time."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415  only where it is

        self.torch = torch
        self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.a)
        self.stream = torch.cuda.Stream()

    def begin(self, products: int) -> list[Any]:
        """Events around each."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(products + 1)]
        with self.torch.cuda.stream(self.stream):
            events[0].record()
            for event in events[1:]:
                self.torch.mm(self.a, self.a, out=self.out)
                event.record()
        return events


def milliseconds(events: list[Any]) -> list[float]:
    events[-1].synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(events)]


def beside_matmul(matmul: Matmul, ways: list[Any], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return, by the name of the way, GB/s while products run, and the slowing of the products.

    Products are queued without end, so that the GPU's clock settles; the ways take turns, each between two stretches of
    products that have the GPU to themselves.
    """
    found: dict[str, tuple[list[float], list[float]]] = {way.name: ([], []) for way in ways}
    milliseconds(matmul.begin(200))
    for _ in range(rounds):
        for way in ways:
            before, beside, after = (matmul.begin(PRODUCTS) for _ in range(3))
            before[-1].synchronize()
            begin, moved = perf_counter_ns(), 0
            while not beside[-1].query():
                for transfer in way.transfers[:4]:
                    way.submit(transfer)
                    moved += int(transfer.sizes.sum())
                way.wait()
            found[way.name][0].append(moved / (perf_counter_ns() - begin))
            alone = np.median(milliseconds(before) + milliseconds(after)[PRODUCTS // 2 :])
            # The first and the last may have run without copies for a part of their time.
            found[way.name][1].append(float(np.median(milliseconds(beside)[1:-1]) / alone))
    return found
