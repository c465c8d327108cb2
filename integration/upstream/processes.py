"""Runs in processes of their own, each of which holds one TensorRT-LLM and ends before anything of upstream's does."""

import multiprocessing
from collections.abc import Callable
from typing import Any


def alone(play: Callable[..., None], *given: Any) -> Any:
    """What `play` has sent: it is given these, and then an end of a pipe. EOFError: it has ended without a word."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=play, args=(*given, sending))
    child.start()
    sending.close()
    try:
        return receiving.recv()
    finally:
        child.join()
