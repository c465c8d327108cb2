"""H4 without TensorRT-LLM: a second thread calls while another is in the manager."""

import threading
from collections.abc import Callable
from typing import Any

from trtllm_kvfix.hazards.simulated import require


def self_test(guarded: Callable[[Callable[[], Any]], Callable[[], Any]], queued: Callable[[], int]) -> None:
    """A second thread's call begins when the first has returned, and a call within a call does not wait."""
    order: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def inner() -> None:
        order.append("inner")

    guarded_inner = guarded(inner)

    def outer() -> None:
        inside.set()
        go_on.wait(timeout=60)
        guarded_inner()
        order.append("outer")

    first = threading.Thread(target=guarded(outer))
    second = threading.Thread(target=guarded(lambda: order.append("second")))
    try:
        first.start()
        require(inside.wait(timeout=60), "the first call never began")
        second.start()
        while second.is_alive() and queued() == 0:
            second.join(timeout=0.001)
    finally:
        go_on.set()  # also behind a ctrl-C: the process cannot end before its threads
    first.join(timeout=60)
    second.join(timeout=60)
    require(order == ["inner", "outer", "second"], f"calls ran in the order {order}")
