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
def guarded(part: str) -> Iterator[Tried]:
    tried, fuse_of_part = Tried(), fuse.of(part)
    try:
        yield tried
    except KvfixError:
        raise
    except Exception as error:
        tried.failed = True
        fuse_of_part.fault(error)
    else:
        fuse_of_part.in_a_row = 0
