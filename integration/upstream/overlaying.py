"""The overlay, turned on as a program does it, and off again."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trtllm_kvfix


@contextmanager
def overlay(
    on: bool, fixes: dict[str, str], staging_mode: str = "auto", manager: str = "upstream", **more: Any
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Turn the overlay on as a program does, with these choices."""
    if not on:
        yield dict
        return
    with tempfile.TemporaryDirectory() as folder:
        before = dict(os.environ)
        os.environ["TRTLLM_KVFIX_TUNING_STAGING_MODE"] = staging_mode
        trtllm_kvfix.enable(fixes=fixes, runtime_dir=folder, manager=manager, **more)
        try:
            yield trtllm_kvfix.status
        finally:
            trtllm_kvfix.disable()
            os.environ.clear()
            os.environ.update(before)
