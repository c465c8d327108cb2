"""Needs a CUDA GPU, torch, pydantic, and tests/ beside integration/.

Tables that the overlay lends to a copy of the copy engine, in 10,000 iterations of the stand-in's loop for each size
from 64 KiB to 16 MiB: upstream's own writers in between, and the copy engine kept busy by others, so that copies are
late. Without the wait for the copy the same traffic is corrupt.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pydantic", reason="needs pydantic, for the settings")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from integration.gpu.test_overlay import applied, corruptions, standing_in  # noqa: E402  not there where it is skipped
from trtllm_kvfix.fixes.staged_offsets_v2 import lending  # noqa: E402
from trtllm_kvfix.metrics import counters  # noqa: E402
from trtllm_kvfix.staging import OffsetStager  # noqa: E402

ITERATIONS = 10_000
CONTROL_ITERATIONS = 500
BUSY_BYTES = 64 << 20
TOKENS_PER_BLOCK = 4


def shape(rows: int, blocks: int, *, v2: bool) -> dict[str, Any]:
    """A server whose table has so many rows of so many blocks, two planes of four bytes each; V2 has two pools."""
    cache = {"max_tokens": 192, "use_kv_cache_manager_v2": v2}
    return {"max_batch_size": rows, "max_seq_len": blocks * TOKENS_PER_BLOCK, "kv_cache_config": cache}


# A batch of one row travels with at least the 64 KiB from which on tables are lent.
TABLES = [
    pytest.param(shape(1, 8192, v2=False), "staged-offsets-v1", id="v1-64KiB"),
    pytest.param(shape(8, 8192, v2=False), "staged-offsets-v1", id="v1-512KiB"),
    pytest.param(shape(256, 8192, v2=False), "staged-offsets-v1", id="v1-16MiB"),
    pytest.param(shape(7, 8192, v2=True), "staged-offsets-v2", id="v2-1MiB"),
    pytest.param(shape(127, 8192, v2=True), "staged-offsets-v2", id="v2-16MiB"),
]


@contextmanager
def busy_copy_engine() -> Iterator[None]:
    """Copies from host to device one after the other: others wait for a millisecond or more."""
    stop = threading.Event()
    source = torch.empty(BUSY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(BUSY_BYTES, dtype=torch.uint8, device="cuda")

    def copy() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not stop.is_set():
                target.copy_(source, non_blocking=True)
                stream.synchronize()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("llm_args", "fix_id"), TABLES)
def test_what_is_lent_is_read_before_it_is_written(llm_args: dict[str, Any], fix_id: str) -> None:
    with standing_in("C"), applied(fix_id), busy_copy_engine():
        late = counters.read()["late_copies"]
        steps, _, what = corruptions(llm_args, ITERATIONS)
        assert counters.read()["late_copies"] > late, "no copy was late, so nothing was shown"
    assert steps >= ITERATIONS and "block offsets" not in what


@pytest.mark.parametrize(("llm_args", "fix_id"), TABLES[1::2])
def test_without_the_wait_the_table_is_written_while_it_is_read(
    llm_args: dict[str, Any], fix_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OffsetStager, "settle", lambda _: None)
    monkeypatch.setattr(lending.Lender, "put_away", lambda _: None)
    with standing_in("C"), applied(fix_id), busy_copy_engine():
        _, corrupt, what = corruptions(llm_args, CONTROL_ITERATIONS)
    assert corrupt > 0 and "block offsets" in what
