"""Faults in the connector's own code inside upstream's loop: counted, logged once, and never passed on to upstream.

    with guarded("offload-kept-blocks") as tried:
        ...  # ours alone; what upstream raises must pass, so its calls lie outside
    if tried.failed:
        ...  # what is safe: keep, wait, or compute

A `KvfixError` is no fault. It stops all ranks on purpose, and says why.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay import fuse


@dataclass
class Tried:
    failed: bool = False


@contextmanager
def guarded(fuse_name: str) -> Iterator[Tried]:
    tried, ours = Tried(), fuse.of(fuse_name)
    try:
        yield tried
    except KvfixError:
        raise
    except Exception as error:
        tried.failed = True
        ours.fault(error)
    else:
        ours.in_a_row = 0
