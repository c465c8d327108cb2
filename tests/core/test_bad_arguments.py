"""Arguments that make no sense are refused by a typed error that shows the value and names the field."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trtllm_kvfix.native import (
    BlockManager,
    BlockManagerConfig,
    OutOfBlocks,
    Prompt,
    RequestBooks,
    Retention,
    SequenceRequest,
    UnknownRequest,
)

from .bad_calls import table
from .scenes import BLOCK, begin, manager, prompt


@pytest.mark.parametrize(
    "output",
    [
        np.zeros((1, 1, 2, 4), dtype=np.int64),
        np.zeros((1, 1, 2, 8), dtype=np.int32)[..., ::2],
        np.zeros((1, 2, 4), dtype=np.int32),
        np.frombuffer(bytes(32), dtype=np.int32).reshape(1, 1, 2, 4),
        [[[[0] * 4] * 2]],
    ],
    ids=["int64", "strided", "3-D", "read-only", "list"],
)
def test_a_table_that_cannot_be_written_in_place_is_refused(output: object) -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    with pytest.raises(TypeError):
        m.copy_batch_block_offsets(output, [1], 1, 0)


def test_a_table_that_is_too_small_is_refused_untouched() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 3 * BLOCK))
    for shape in ((1, 1, 2, 2), (1, 0, 2, 4), (2, 1, 2, 4), (1, 1, 3, 4)):
        table = np.full(shape, 9, dtype=np.int32)
        with pytest.raises(ValueError, match=r"copy_batch_block_offsets|request 1"):
            m.copy_batch_block_offsets(table, [1], 1, 0)
        assert (table == 9).all()


REFUSED_BY_NAME: list[tuple[str, int, Callable[[BlockManager, Any], object]]] = [
    ("request_id", 64, lambda _, number: SequenceRequest(number, [1])),
    ("chunk_tokens", 32, lambda m, number: m.add_sequence(SequenceRequest(5, [1]), chunk_tokens=number)),
    ("chunk_tokens", 32, lambda m, number: m.add_sequence_batch([], chunk_tokens=number)),
    ("chunk_tokens", 32, lambda m, number: m.analyze_prefix_reuse(SequenceRequest(5, [1]), chunk_tokens=number)),
    ("chunk_tokens", 32, lambda m, number: m.blocks_to_admit(SequenceRequest(5, [1]), chunk_tokens=number)),
    ("tokens_new_max", 32, lambda m, number: m.blocks_to_admit(SequenceRequest(5, [1]), tokens_new_max=number)),
    ("tokens_new_max", 64, lambda m, number: m.add_sequence_batch([], tokens_new_max=number)),
    ("request_id", 64, lambda m, number: m.add_token(number)),
    ("count", 32, lambda m, number: m.add_token(1, number)),
    ("request_id", 64, lambda m, number: m.rewind_kv_cache(number, 0)),
    ("count", 32, lambda m, number: m.rewind_kv_cache(1, number)),
    ("request_id", 64, lambda m, number: m.store_context_blocks(number, 0)),
    ("tokens_computed", 32, lambda m, number: m.store_context_blocks(1, number)),
    ("request_id", 64, lambda m, number: m.remove_sequence(number)),
    ("request_id", 64, lambda m, number: m.get_cache_block_ids(number)),
    ("window_size", 32, lambda m, number: m.get_cache_block_ids(1, number)),
    ("window_size", 32, lambda m, number: m.get_batch_cache_block_ids([1], number)),
    ("beam_width", 32, lambda m, number: m.copy_batch_block_offsets(table(m), [1], number, 0)),
    ("offset", 64, lambda m, number: m.copy_batch_block_offsets(table(m), [1], 1, number)),
    ("request_id", 64, lambda m, number: m.get_token_count(number)),
    ("request_id", 64, lambda m, number: m.get_num_front_blocks_removed(number)),
    ("window_size", 32, lambda m, number: m.get_num_front_blocks_removed(1, number)),
    ("block_id", 64, lambda m, number: m.get_priority_by_block_id(number)),
    ("request_id", 64, lambda m, number: m.get_request_stats(number)),
    ("request_id", 64, lambda m, number: m.suspend_sequence(number)),
    ("request_id", 64, lambda m, number: m.resume_sequence(number)),
    ("request_id", 64, lambda m, number: m.blocks_to_resume(number)),
    ("request_id", 64, lambda m, number: m.commit_and_get_block_hashes(number)),
    ("ticket", 64, lambda m, number: m.complete(number)),
    ("ticket", 64, lambda m, number: m.fail(number)),
    ("tokens_kept", 32, lambda m, number: m.truncate_blocks(SequenceRequest(1, [1]), number)),
    ("computed", 32, lambda m, number: m.add_token(1, computed=number)),
    ("computed", 32, lambda m, number: m.remove_sequence(1, computed=number)),
    ("request 1, beam_width", 32, lambda _, number: SequenceRequest(1, [1], beam_width=number)),
    ("retention token_start", 32, lambda _, number: Retention([(number, None, 35, None)])),
    ("retention token_end", 32, lambda _, number: Retention([(0, number, 35, None)])),
    ("retention priority", 8, lambda _, number: Retention([(0, 1, number, None)])),
    ("retention duration_ms", 32, lambda _, number: Retention([(0, 1, 35, number)])),
    ("retention decode_priority", 8, lambda _, number: Retention(decode_priority=number)),
    ("retention decode_duration_ms", 32, lambda _, number: Retention(decode_duration_ms=number)),
    ("tokens_per_block", 32, lambda _, number: BlockManagerConfig(tokens_per_block=number, blocks_primary=4)),
    ("blocks_primary", 32, lambda _, number: BlockManagerConfig(tokens_per_block=4, blocks_primary=number)),
    (
        "blocks_primary",
        32,
        lambda _, number: BlockManagerConfig(tokens_per_block=4, window_sizes=[4], blocks_primary={4: number}),
    ),
    (
        "blocks_host",
        32,
        lambda _, number: BlockManagerConfig(tokens_per_block=4, blocks_primary=4, blocks_host=number),
    ),
    (
        "offload_priority_min",
        8,
        lambda _, number: BlockManagerConfig(tokens_per_block=4, blocks_primary=4, offload_priority_min=number),
    ),
]


@pytest.mark.parametrize(("name", "bits", "call"), REFUSED_BY_NAME)
def test_a_number_that_does_not_fit_is_refused_by_the_name_of_its_argument(
    name: str, bits: int, call: Callable[[BlockManager, Any], object]
) -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    for number in (-1, 2**bits):
        with pytest.raises(ValueError, match=f"^{name} is {number}: 0 to {2**bits - 1}$"):
            call(m, number)
    for other in (1.5, "1", True):
        with pytest.raises(TypeError, match=f"^{name}: expected an int, got {other!r}$"):
            call(m, other)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("lora_id", lambda _, number: SequenceRequest(1, [1], lora_id=number)),
        ("lora_id", lambda _, number: Prompt(1, [1], lora_id=number)),
        ("now_ms", lambda m, number: m.advance_time(number)),
        ("scale", lambda m, number: m.copy_batch_block_offsets(table(m), [], 1, 0, scale=number)),
        ("v_offset", lambda m, number: m.copy_batch_block_offsets(table(m), [], 1, 0, v_offset=number)),
    ],
)
def test_so_is_a_signed_number(name: str, call: Callable[[BlockManager, Any], object]) -> None:
    m = manager(primary=8)
    end = 2**31 if name in ("scale", "v_offset") else 2**63
    for number in (-end - 1, end):
        with pytest.raises(ValueError, match=f"^{name} is {number}: -{end} to {end - 1}$"):
            call(m, number)
    with pytest.raises(TypeError, match=f"^{name}: expected an int, got '1'$"):
        call(m, "1")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("start, free", lambda books, number: books.start([number])),
        ("fits, blocks", lambda books, number: books.start([4]).fits([number])),
        (
            "window_sizes",
            lambda _, number: BlockManagerConfig(tokens_per_block=4, blocks_primary=4, window_sizes=[number]),
        ),
    ],
)
def test_so_is_a_number_in_a_list(name: str, call: Callable[[RequestBooks, Any], object]) -> None:
    books = RequestBooks(manager(primary=8))
    with pytest.raises(ValueError, match=f"^{name}.*{2**70}"):
        call(books, 2**70)
    for other in (1.5, "1", True):
        with pytest.raises(TypeError, match=f"^{name}: expected .* ints, got '{type(other).__name__}' at position 0$"):
            call(books, other)


@pytest.mark.parametrize("ranges", [7, [7], [(0, 4)], [(0, 4, 35)], None])
def test_ranges_that_are_no_ranges_are_refused(ranges: Any) -> None:
    with pytest.raises(TypeError, match=r"^retention ranges: expected .*, got "):
        Retention(ranges)


def test_a_digest_has_a_limit_that_no_digest_reaches() -> None:
    assert SequenceRequest(1, [1, 2], extra_keys=[(0, 2, bytes(256))]).extra_keys == [(0, 2, bytes(256))]
    with pytest.raises(
        ValueError, match=r"^request 1, extra_keys: span \[0, 2\) has a digest of 257 bytes, more than 256"
    ):
        SequenceRequest(1, [1, 2], extra_keys=[(0, 2, bytes(257))])


def test_numbers_of_numpy_are_taken() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2))
    one: Any = np.uint64(1)
    m.add_token(one, one + one)
    assert m.get_token_count(one) == 4


def test_errors_are_typed_and_say_what_they_know() -> None:
    m = manager(primary=2)
    with pytest.raises(OutOfBlocks, match="3") as caught:
        m.add_sequence(SequenceRequest(1, prompt(1, 3 * BLOCK)))
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(UnknownRequest) as unknown:
        m.add_token(77)
    assert isinstance(unknown.value, KeyError)
    assert "77" in str(unknown.value) and not str(unknown.value).startswith("'")


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens_per_block": 0},
        {"blocks_primary": 0},
        {"blocks_primary": 5_000_000_000},
        {"blocks_primary": -1},
        {"blocks_host": {4: -1}, "window_sizes": [4]},
        {"events_max": -1},
        {"max_beam_width": 0},
        {"max_beam_width": 5},
        {"max_beam_width": 2**31},
        {"max_beam_width": 9, "window_sizes": [4, 8], "blocks_primary": {4: 8, 8: 16}},
        {"window_sizes": [8, 4]},
        {"window_sizes": [4, 4]},
        {"window_sizes": [0]},
        {"window_sizes": []},
        {"window_sizes": [4], "blocks_primary": {8: 4}},
        {"blocks_primary": {4: 4}},
        {"offload_priority_min": 101},
        {"host_admission": "adaptive"},
        {"host_admission": "some", "blocks_host": 4},
        {"hash_bits": 0},
        {"hash_bits": 129},
        {"seed": -1},
        {"seed": 2**128},
        {"seed": True},
        {"seed": "one"},
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    good: dict[str, object] = {"tokens_per_block": 4, "blocks_primary": 4}
    with pytest.raises(ValueError, match=next(iter(bad))):
        BlockManager(BlockManagerConfig(**{**good, **bad}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ranges",
    [
        [(4, 8, 10, None), (0, 4, 10, None)],
        [(0, 5, 10, None), (4, 8, 10, None)],
        [(0, None, 10, None), (4, 8, 10, None)],
        [(4, 4, 10, None)],
        [(0, 4, 101, None)],
        [(0, 4, 300, None)],
        [(-1, 4, 10, None)],
        [(0, 4, 10, -5)],
    ],
    ids=str,
)
def test_retention_that_makes_no_sense_is_refused(ranges: list[tuple[int, int | None, int, int | None]]) -> None:
    with pytest.raises(ValueError, match="retention"):
        Retention(ranges)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": 0},
        {"beam_width": -1},
        {"extra_keys": [(-1, 2, b"x")]},
        {"extra_keys": [(2**70, 2, b"x")]},
        {"extra_keys": [(0, 9, b"x")]},
        {"extra_keys": [(2, 2, b"x")]},
        {"extra_keys": [(1, 3, b"x"), (2, 4, b"y")]},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused_by_field(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"request 41, {next(iter(options))}"):
        SequenceRequest(41, [1, 2, 3, 4], **options)  # type: ignore[arg-type]


HUGE = 10**5000  # Python refuses to print it


@pytest.mark.parametrize(
    "options",
    [
        {"salt": HUGE},
        {"salt": 2**63},
        {"salt": True},
        {"salt": 1.5},
        {"extra_keys": [("1", 2, b"x")]},
        {"extra_keys": [(1, 2, "x")]},
    ],
    ids=lambda options: f"{next(iter(options))} {type(next(iter(options.values()))).__name__}",
)
def test_a_value_of_another_kind_is_refused_by_field(options: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"request 41, {next(iter(options))}"):
        SequenceRequest(41, [1, 2, 3, 4], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("salt", ["\ud800", "tenant \udcff"])
def test_a_salt_that_is_not_text_is_refused_by_field(salt: str) -> None:
    with pytest.raises(ValueError, match=r"request 41, salt: .*surrogate"):
        SequenceRequest(41, [1], salt=salt)


def test_as_many_beams_as_the_smallest_window_has_blocks_are_served() -> None:
    m = manager(primary=8, window_sizes=[4, 8], max_beam_width=8)
    m.add_sequence(SequenceRequest(1, [1], beam_width=8))
    assert m.get_kv_cache_stats().free_num_blocks == 0
    m.check_invariants()


@pytest.mark.parametrize("count", [2**40, 2**50])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_few_bytes_that_claim_to_be_more_values_than_there_can_be_are_not_read(count: int, dtype: type) -> None:
    with pytest.raises(ValueError, match=f"request 1, tokens: {count} values are over the limit of {2**31 - 1}"):
        SequenceRequest(1, np.broadcast_to(dtype(1), count))


def test_an_array_that_does_not_export_itself_is_named_with_its_reason() -> None:
    gone = memoryview(array.array("i", [1]))
    gone.release()
    for refuses, why in ((np.zeros(2, "M8[s]"), "cannot include dtype 'M'"), (gone, "released memoryview")):
        with pytest.raises(TypeError, match=f"request 1, tokens: .*, which does not export itself: .*{why}"):
            SequenceRequest(1, refuses)


def test_items_of_no_size_are_refused_by_their_format() -> None:
    with pytest.raises(TypeError, match="got items of format"):
        SequenceRequest(1, np.zeros(3, dtype=[]))
