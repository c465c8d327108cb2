"""What a server records, and what a replay of it finds."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests import fresh
from tests.offload.stand_in import offloading
from tests.overlay.test_stand_in import below_run
from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server
from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.living import Living
from trtllm_kvfix.native import BlockManagerConfig
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.recording import FUSE, HEAD, Begun, EndedRequest, Hashes, Recording, RequestRecorder, line_of
from trtllm_kvfix.sections import Settings
from trtllm_kvfix.tools.replay.engine import Replay, Workload
from trtllm_kvfix.tools.replay.outcome import CacheShape, ReplayOutcome
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TraceError, read_trace

SIZE = 4  # tokens of a block
BLOCKS = 40
NOBODY = Identity(salt=0)


@pytest.fixture(autouse=True)
def whole_fuse() -> Iterator[None]:
    yield
    fuse.reset(FUSE)


@contextmanager
def recorded(file: Path, variant: str, record_bytes_max: int = 1 << 30, **cache: Any) -> Iterator[Server]:
    """A server of the stand-in with what records put in place, as the overlay does. The file is whole behind it."""
    settings = Settings(record=str(file), record_bytes_max=record_bytes_max)
    active: Any = SimpleNamespace(settings=settings, engines=Living())
    recorder, registry = RequestRecorder(), Registry()
    with upstream(variant):
        config = {"max_tokens": BLOCKS * SIZE, "enable_partial_reuse": False} | cache
        server = Server(
            {"max_seq_len": 96, "max_num_tokens": 96, "kv_cache_config": config, "disable_overlap_scheduler": True}
        )
        active.engines.add(server.executor)
        registry.install("recording", recorder.replacements(active))
        try:
            assert recorder.objection(active.settings, server.executor) == ""
            yield server
            server.close()
        finally:
            assert registry.revert() == []
            if recorder._recording is not None:
                recorder._recording.close()


def conversations(server: Server, turns: int) -> list[Any]:
    """Turns of conversations that begin alike, one after another: each repeats its answers, and some have left."""
    random, served = np.random.default_rng(3), list[Any]()
    histories = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 1000 * number] for number in range(6)]
    for number in range(turns):
        history = histories[int(random.integers(len(histories)))]
        if len(history) > 60:
            del history[10:]
        history += random.integers(0, 900, int(random.integers(3, 12))).tolist()
        request = server.request(number, list(history), int(random.integers(1, 8)))
        server.run([request])
        history[:] = request.get_tokens(0)
        served.append(request)
    return served


@contextmanager
def as_configured(variant: str) -> Iterator[None]:
    """From C on, a server that reuses no part of a block keeps no begun blocks either. `replay` has no such option."""
    with mock.patch(
        "trtllm_kvfix.tools.replay.engine.BlockManagerConfig", partial(BlockManagerConfig, partial_reuse=variant < "C")
    ):
        yield


def replayed(file: Path, blocks: int = BLOCKS) -> ReplayOutcome:
    trace = read_trace(file)
    workload = Workload("recorded", trace.requests, TokenBook(trace.requests, trace.tokens_per_hash_id))
    return Replay(workload, CacheShape(
        tokens_per_block=SIZE, blocks_primary=blocks, blocks_host=0, bytes_per_block=None, max_batch_size=1,
        max_num_tokens=96, tokens_per_iteration=1, iteration_ms=0,
    )).run()  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_replay_finds_what_the_servers_manager_reported(variant: str, tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    with recorded(file, variant) as server:
        served = conversations(server, 80)
        reported = server.manager.impl.get_kv_cache_stats()
    with as_configured(variant):
        found = replayed(file)
    assert found.requests.finished == len(served)
    assert found.tokens.primary + found.tokens.computed == sum(request.orig_prompt_len for request in served)
    assert 0 < reported.reused_blocks < sum(request.orig_prompt_len // SIZE for request in served)
    assert found.blocks.primary == reported.reused_blocks


def test_what_a_small_cache_has_recorded_says_what_a_large_one_would_find(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    with recorded(file, "D", max_tokens=20 * BLOCKS * SIZE) as server:
        conversations(server, 80)
        reported = server.manager.impl.get_kv_cache_stats()
    with recorded(tmp_path / "of_a_small_cache.jsonl", "D") as server:
        conversations(server, 80)
    small, large = read_trace(tmp_path / "of_a_small_cache.jsonl"), read_trace(file)
    assert [one[1:3] for one in small.requests] == [one[1:3] for one in large.requests]
    found = replayed(tmp_path / "of_a_small_cache.jsonl", blocks=20 * BLOCKS)
    assert found.blocks.primary == reported.reused_blocks


def test_a_line_has_hashes_and_no_tokens_and_each_start_has_a_key_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    for _ in range(2):
        with recorded(file, "F") as server:
            server.run([server.request(number, [7, 7, 7, 7, 7, 7], 3) for number in range(2)])
    heads, lines = sorted(map(json.loads, file.read_text().splitlines()), key=len)[:2], read_trace(file).requests
    assert heads == [{HEAD: 1, "tokens_per_block": SIZE}] * 2
    assert [(one.input_length, one.output_length, one.computed) for one in lines] == [(6, 3, 8)] * 4
    ids = [tuple(np.asarray(one.hash_ids).tolist()) for one in lines]
    assert ids[0][0] == ids[1][0] != ids[2][0] == ids[3][0]
    assert ids[0][1] != ids[1][1], "which has another answer"
    assert file.stat().st_mode & 0o777 == 0o600


OTHERS = [Identity(lora_id=1, salt=0), Identity(salt=1), Identity(salt=0, extra_keys=((5, 6, b"image"),))]


@pytest.mark.parametrize("other", OTHERS)
def test_blocks_of_another_identity_have_other_names(other: Identity) -> None:
    hashes, tokens = Hashes(SIZE), np.arange(10, dtype=np.int32)
    ours, theirs = hashes.of(NOBODY, tokens), hashes.of(other, tokens)
    assert len(ours) == len(theirs) == 3
    assert ours[1:] != theirs[1:] and ours[2] != theirs[2]


@pytest.mark.parametrize("length", range(1, 13))
def test_names_are_equal_as_far_as_tokens_are(length: int) -> None:
    hashes, tokens = Hashes(SIZE), np.arange(12, dtype=np.int32)
    whole, part = hashes.of(NOBODY, tokens), hashes.of(NOBODY, tokens[:length])
    equal = sum(one == other for one, other in zip(whole, part, strict=False))
    assert equal == length // SIZE and len(part) == -(-length // SIZE)
    assert all(0 <= name < 1 << 63 for name in whole)


def test_a_request_without_an_answer_and_one_whose_prompt_is_shorter_than_a_block() -> None:
    for tokens, prompt in (([1, 2, 3], 3), ([1, 2, 3, 4, 5, 6, 7], 3), ([1], 1), ([1, 2], 1)):
        fields = json.loads(line_of(EndedRequest(Begun(5.0, prompt, NOBODY), tokens), Hashes(SIZE)))
        assert fields["input_length"] + fields["output_length"] == len(tokens)
        assert len(fields["hash_ids"]) == 1


def test_a_recording_ends_at_its_size_with_a_whole_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "recorded.jsonl"
    recording = Recording(str(file), 1000, SIZE)
    for number in range(50):
        recording.add(EndedRequest(Begun(1.0 + number, 9, NOBODY), list(range(12))))
    recording.close()
    assert 700 < file.stat().st_size <= 1000
    assert len(read_trace(file).requests) > 3
    assert recording.is_over and "kvfix.record_bytes_max, 1000" in caplog.text


def test_a_file_that_is_full_at_the_start_is_not_said_to_be_recorded_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "recorded.jsonl"
    caplog.set_level("INFO")
    for size, are_recorded in ((1, False), (1 << 20, True)):
        caplog.clear()
        with recorded(file, "F", record_bytes_max=size) as server:
            server.run([server.request(1, [1, 2, 3], 2)])
        assert ("requests are recorded in" in caplog.text) == are_recorded
        assert ("the recording ends" in caplog.text) != are_recorded


def test_a_full_disk_ends_the_recording_and_leaves_whole_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, write = tmp_path / "recorded.jsonl", os.write
    recording = Recording(str(file), 1 << 20, SIZE)
    calls = iter(range(100))

    def filling(descriptor: int, data: bytes) -> int:
        call = next(calls)
        if call == 2:
            return write(descriptor, data[: len(data) // 2])
        if call > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    with mock.patch("os.write", filling):
        for number in range(9):
            recording.add(EndedRequest(Begun(1.0 + number, 9, NOBODY), list(range(12))))
        recording.close()
    assert len(read_trace(file).requests) == 2
    assert "the server goes on" in caplog.text and "No space left" in caplog.text


def test_what_waits_to_be_written_is_bounded_and_a_loss_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_kvfix.recording.TOKENS_WAITING_MAX", 10)
    recording = Recording(str(tmp_path / "recorded.jsonl"), 1 << 20, SIZE)
    for number in range(3):
        recording.add(EndedRequest(Begun(1.0 + number, 9, NOBODY), list(range(12))))
    recording.close()
    assert caplog.text.count("the recording lacks requests") == 1


def test_faults_of_the_recorder_never_reach_the_server_and_blow_its_fuse(tmp_path: Path) -> None:
    with recorded(tmp_path / "recorded.jsonl", "F") as server:
        with mock.patch("trtllm_kvfix.recording.identity_of", side_effect=RuntimeError("planted")) as planted:
            served = conversations(server, 6)
        assert [bool(request.output_tokens) for request in served] == [True] * 6
        assert planted.call_count == fuse.IN_A_ROW_MAX
    assert fuse.of(FUSE).blown


@pytest.mark.parametrize("variant", VARIANTS)
def test_requests_that_keep_their_blocks_to_save_them_are_recorded_once(variant: str, tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    active: Any = SimpleNamespace(settings=Settings(record=str(file)), engines=Living())
    recorder, registry = RequestRecorder(), Registry()
    with offloading(variant, 40, 20) as server:
        registry.install("recording", recorder.replacements(active))
        server.run([server.request(number, [number] * 9, 3) for number in range(6)])
        server.run([server.request(7, [1] * 9, 3)])
        for number in range(100, 1000):  # until all have been saved
            if not any(begun.prompt_tokens == 9 for begun in list(recorder._begun.values())):
                break
            server.run([server.request(number, [5], 1)])
        assert registry.revert() == []
    assert recorder._recording is not None
    recorder._recording.close()
    assert not recorder._begun
    lengths = [one.input_length for one in read_trace(file).requests]
    assert [length for length in lengths if length == 9] == [9] * 7


def test_warm_up_is_not_recorded(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    with recorded(file, "F") as server:
        server.executor.is_warmup = True
        server.run([server.request(1, [1, 2, 3], 2)])
        server.executor.is_warmup = False
        server.run([server.request(2, [1, 2, 3, 4], 2)])
    assert [one.input_length for one in read_trace(file).requests] == [4]


@pytest.mark.parametrize(("make", "wanted"), [
    (lambda file: file.mkdir(), "Is a directory"),
    (os.mkfifo, "no regular file"),
    (lambda file: file.write_text("mine"), "something else than a recording"),
    (lambda file: file.symlink_to(file.parent / "no" / "where"), "No such file"),
])  # fmt: skip
def test_a_file_that_cannot_be_written_refuses_the_start(make: Any, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    make(file)
    with pytest.raises(SettingsError, match=wanted):
        Recording(str(file), 1 << 20, SIZE)
    assert not file.is_file() or file.read_text() == "mine"


def test_a_file_to_which_another_process_records_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    recording = Recording(str(file), 1 << 20, SIZE)
    code = f"from trtllm_kvfix.recording import Recording; Recording({str(file)!r}, 1 << 20, {SIZE})"
    done = fresh.run([sys.executable, "-c", code])
    assert done.returncode != 0 and "another process records" in done.stderr
    recording.close()


def test_a_server_below_run_records_and_one_that_cannot_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    done = below_run(tmp_path, "F", f"kvfix: {{record: {file}}}")
    assert done.returncode == 0, done.stderr
    assert len(read_trace(file).requests) == 12
    done = below_run(tmp_path, "F", f"kvfix: {{record: {tmp_path / 'none' / 'file'}}}")
    assert done.returncode != 0
    assert "kvfix.record is" in done.stderr and "No such file" in done.stderr


def test_a_replay_refuses_a_recording_of_another_format_or_other_blocks(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    file.write_text(json.dumps({HEAD: 2, "tokens_per_block": 4}) + "\n")
    with pytest.raises(TraceError, match="format 1"):
        read_trace(file)
    file.write_text(json.dumps({HEAD: 1, "tokens_per_block": 4}) + "\n")
    with pytest.raises(TraceError, match="4 tokens, and of those before for 8"):
        read_trace(file, tokens_per_hash_id=8)
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(file)
