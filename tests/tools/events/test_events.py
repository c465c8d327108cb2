"""What `trtllm-kvfix events` records of a server, and what a replay of that finds."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.tools.events.server import RadixCache, Tokens, hash_of, serving, stored_block
from trtllm_kvfix.cli import main
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.recording import HEAD
from trtllm_kvfix.tools.events.command import endpoint_of
from trtllm_kvfix.tools.events.recorder import EventCounts, EventRecorder
from trtllm_kvfix.tools.replay.trace import TraceRequest, read_trace

BYTES_MAX = 1 << 24
LARGE = 16  # tokens of a block, where few requests end with a whole one


def called(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def recorded(events: deque[Any] | list[Any], file: Path, bytes_max: int = BYTES_MAX) -> EventCounts:
    recorder = EventRecorder(str(file), bytes_max)
    recorder.add(list(events), 5.0)
    recorder.close()
    return recorder.counts


def requests_in(file: Path) -> list[TraceRequest]:
    return read_trace(file).requests


def names_of(request: TraceRequest) -> list[int]:
    """Of its prompt."""
    assert request.hash_ids is not None
    return [int(each) for each in request.hash_ids]


def conversations(cache: RadixCache, turns: int) -> list[dict[str, Any]]:
    """Turns of conversations that begin alike, one after another. Each repeats the answers before it."""
    random, served = np.random.default_rng(3), list[dict[str, Any]]()
    histories = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 1000 * number] for number in range(8)]
    for _ in range(turns):
        history = histories[int(random.integers(len(histories)))]
        if len(history) > 600:
            del history[10:]
        history += random.integers(0, 900, int(random.integers(20, 160))).tolist()
        answer = random.integers(0, 900, int(random.integers(2, 80))).tolist()
        cache.serve(tuple(history), tuple(answer))
        served.append({"tokens": list(history), "output_tokens": answer})
        history += answer
    return served


def replayed(file: Path, blocks: int) -> dict[str, Any]:
    shape = f"--tokens-per-block {LARGE} --blocks-primary {blocks} --blocks-host 0 --max-batch-size 1".split()
    result = called("replay", file, *shape, "--max-num-tokens", 1000, "--json")
    assert result.exit_code == 0, result.output
    (outcome,) = json.loads(result.output)["outcomes"]
    return dict(outcome)


@pytest.mark.parametrize("keeps_begun", [True, False])
@pytest.mark.parametrize("blocks", [50, 1000])
def test_a_replay_of_what_was_recorded_finds_nearly_what_one_of_the_requests_finds(
    keeps_begun: bool, blocks: int, tmp_path: Path
) -> None:
    cache = RadixCache(150, size=LARGE, keeps_begun=keeps_begun)
    served, file = conversations(cache, 300), tmp_path / "recorded.jsonl"
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, served)))
    with serving(cache.events) as server:
        result = called("events", server.url, "--record", file, "--seconds", 0.05, "--every", 0.02)
    assert result.exit_code == 0, result.output
    assert ("where an answer ends" in result.output) is not keeps_begun
    found, true = replayed(file, blocks), replayed(tmp_path / "requests.jsonl", blocks)
    assert 0.9 * len(served) < found["requests"]["finished"] <= len(served)
    assert 0.8 * true["tokens"]["primary"] < found["tokens"]["primary"] <= true["tokens"]["primary"]


def test_a_prompt_that_is_found_to_its_last_block_is_seen_by_what_its_answer_stores(tmp_path: Path) -> None:
    cache, file = RadixCache(100), tmp_path / "recorded.jsonl"
    for answer in ((20, 21, 22), (30, 31, 32)):
        cache.serve((1, 2, 3, 4, 5, 6, 7, 8, 9), answer)
    recorded(cache.events, file)
    first, second = requests_in(file)
    assert (first.input_length, first.computed, second.computed) == (8, 11, 11)
    assert names_of(first) == names_of(second)[:2]


def test_a_prompt_that_is_computed_in_chunks_is_one_request(tmp_path: Path) -> None:
    cache, file, prompt = RadixCache(100), tmp_path / "recorded.jsonl", tuple(range(41))
    cache.serve((7,) * 6, (8,))
    for end in (13, 25, 41):
        cache.begin(prompt[:end])
    cache.end((*prompt, 50, 51))
    recorded(cache.events, file)
    assert [one.computed for one in requests_in(file)] == [6, 43]


def test_requests_that_overlap_are_told_apart(tmp_path: Path) -> None:
    cache, file = RadixCache(100), tmp_path / "recorded.jsonl"
    prompts: list[Tokens] = [tuple(range(start, start + 9)) for start in (0, 100, 200)]
    for prompt in prompts:
        cache.begin(prompt)
    for prompt in reversed(prompts):
        cache.end((*prompt, 50))
    recorded(cache.events, file)
    found = requests_in(file)
    assert [(one.input_length, one.computed) for one in found] == [(8, 10)] * 3
    assert len({name for one in found for name in names_of(one)}) == 6


def test_the_file_has_no_token_and_two_recordings_have_no_name_in_common(tmp_path: Path) -> None:
    cache = RadixCache(100)
    cache.serve((11111, 22222, 33333, 44444, 55555), (66666,))
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file in files:
        recorded(cache.events, file)
        assert "11111" not in file.read_text() and str(hash_of((11111, 22222, 33333, 44444))) not in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
    (one,), (two,) = map(requests_in, files)
    assert len(names_of(one)) == 1 and names_of(one) != names_of(two)


def test_events_that_are_not_known_or_not_whole_are_counted_and_left_out(tmp_path: Path) -> None:
    cache, file = RadixCache(100), tmp_path / "recorded.jsonl"
    cache.say({"type": "moved_to_the_moon"})
    cache.say({"type": "stored", "parent_hash": None, "blocks": []})
    cache.say({"type": "updated", "block_hash": 5, "cache_level": {"new_value": 1, "old_value": 0}})
    cache.events += ["text", {"event_id": "x", "data": {"type": "removed", "block_hashes": []}}]
    cache.serve((1, 2, 3, 4, 5), (6, 7))
    with serving(cache.events) as server:
        result = called("events", server.url, "--record", file, "--seconds", 0.01)
    assert result.exit_code == 0, result.output
    assert (
        "cannot be used: 1 moved_to_the_moon, 1 stored without a valid data.stored.blocks, 1 no event" in result.output
    )
    assert len(requests_in(file)) == 1


def test_events_that_did_not_come_are_counted(tmp_path: Path) -> None:
    cache = RadixCache(100)
    for number in range(4):
        cache.serve((number,) * 5, (6,))
    del cache.events[2], cache.events[2]
    assert recorded(cache.events, tmp_path / "recorded.jsonl").lost == 2


def test_prompts_whose_beginnings_were_stored_before_lack_them_and_still_share_the_rest(tmp_path: Path) -> None:
    cache, file, system = RadixCache(100), tmp_path / "recorded.jsonl", tuple(range(9))
    cache.serve(system, (1,))
    cache.events.clear()
    cache.serve((*system, *range(20, 32)), (1,))
    cache.serve((*system, *range(20, 40)), (1,))
    counts = recorded(cache.events, file)
    first, second = requests_in(file)
    assert (counts.cut, first.computed, second.computed) == (1, 13, 21)
    assert names_of(first)[:3] == names_of(second)[:3]


def test_only_the_largest_window_is_followed_and_ranks_have_files_of_their_own(tmp_path: Path) -> None:
    cache, file = RadixCache(100), tmp_path / "recorded.jsonl"
    cache.serve((1, 2, 3, 4, 5), (6, 7))
    cache.say(
        {"type": "stored", "parent_hash": None, "blocks": [stored_block((1, 2, 3, 4)), stored_block((1, 2, 3, 4, 5))]},
        window_size=16,
    )
    other = RadixCache(100)
    other.serve((9, 8, 7, 6, 5), (4, 3))
    counts = recorded([*cache.events, *({**each, "attention_dp_rank": 1} for each in other.events)], file)
    assert (counts.of_other_windows, counts.lost, counts.restarts) == (1, 0, 0)
    assert [len(requests_in(each)) for each in (file, tmp_path / "recorded.jsonl.1")] == [1, 1]


def test_a_cache_whose_removals_were_lost_and_hashes_in_a_circle_end_nothing(tmp_path: Path) -> None:
    cache, file = RadixCache(100), tmp_path / "recorded.jsonl"
    whole = stored_block((1, 2, 3, 4))["block_hash"], stored_block(tuple(range(4)))["block_hash"]
    for _ in range(2):
        for parent, child in (whole, whole[::-1]):
            cache.say(
                {"type": "stored", "parent_hash": parent, "blocks": [stored_block((1,) * 4) | {"block_hash": child}]}
            )
    counts = recorded(cache.events, file)
    assert counts.requests == len(requests_in(file)) > 0


def test_blocks_that_leave_the_cache_end_the_request(tmp_path: Path) -> None:
    cache, file = RadixCache(3), tmp_path / "recorded.jsonl"
    cache.begin(tuple(range(9)))
    for number in range(3):
        cache.begin((100 * number,) * 9)
    recorder = EventRecorder(str(file), BYTES_MAX)
    recorder.add(list(cache.events), 5.0)
    assert len(requests_in(file)) == 3
    recorder.close()
    assert len(requests_in(file)) == 4


def test_a_recording_that_is_too_long_ends_and_is_whole(tmp_path: Path) -> None:
    cache, config = RadixCache(300), tmp_path / "kvfix.yaml"
    conversations(cache, 100)
    config.write_text("kvfix: {record_bytes_max: 5000}")
    with serving(cache.events) as server:
        result = called("--config", config, "events", server.url, "--record", tmp_path / "recorded.jsonl")
    assert result.exit_code == 0, result.output
    assert "ended early" in result.output and "kvfix.record_bytes_max, 5000" in result.output
    assert len(requests_in(tmp_path / "recorded.jsonl")) > 2


def test_a_disk_that_is_full_at_the_first_line_is_an_error(tmp_path: Path) -> None:
    cache = RadixCache(100)
    cache.serve((1, 2, 3, 4, 5), (6, 7))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with serving(cache.events) as server, mock.patch("os.write", side_effect=full):
        result = called("events", server.url, "--record", tmp_path / "recorded.jsonl")
    assert result.exit_code == 2 and "cannot be written: No space left" in result.output
    assert not (tmp_path / "recorded.jsonl").exists()


# ---- the server ----


@contextmanager
def recording(url: str, file: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "trtllm_kvfix", "events", url, "--record", str(file), "--every", "0.02"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_with_all_that_was_said(number: signal.Signals, tmp_path: Path) -> None:
    cache, file = RadixCache(300), tmp_path / "recorded.jsonl"
    cache.begin(tuple(range(9)))
    with serving(cache.events) as server, recording(server.url, file) as process:
        server.asked.acquire()
        server.asked.acquire()  # so the first answer has been read
        process.send_signal(number)
        said, _ = process.communicate()
    assert process.returncode == 0 and "1 request recorded" in said
    assert [one.input_length for one in requests_in(file)] == [8]


def test_a_server_that_starts_again_is_waited_for_and_has_nothing_in_common(tmp_path: Path) -> None:
    file, prompt = tmp_path / "recorded.jsonl", tuple(range(9))
    first, second = RadixCache(100), RadixCache(100)
    first.serve(prompt, (1, 2))
    first.serve((5, 5, 5, 5, 5), (1, 2))
    second.serve(prompt, (1, 2))
    with serving(first.events) as server:
        port = server.server_port
        with recording(server.url, file) as process:
            server.asked.acquire()
            server.asked.acquire()
            server.shutdown()
            server.server_close()
            assert process.stderr is not None
            assert "away" in next(line for line in process.stderr if "recording" not in line)
            with serving(second.events, port) as again:
                assert "is back" in process.stderr.readline()
                again.asked.acquire()
                again.asked.acquire()
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate()
    assert process.returncode == 0 and "started again 1 time," in said
    assert file.read_text().count(HEAD) == 2
    old, other, new = requests_in(file)
    assert old.computed == new.computed == 10 and other.computed == 6
    assert not set(names_of(old)) & set(names_of(new))


def test_a_server_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    with serving(deque()) as server:
        url = server.url
    result = called("events", url, "--record", tmp_path / "recorded.jsonl")
    assert result.exit_code == 2 and f"{url}/kv_cache_events cannot be reached: Connection refused" in result.output


@pytest.mark.parametrize(("status", "text", "says"), [
    (404, "no", "answers 404 Not Found: expected trtllm-serve"),
    (503, "no", "cannot be reached: 503 Service Unavailable"),
    (200, "<html>", "something else than JSON"),
    (200, "{}", "a JSON dict, expected a list"),
    (200, "[]", "Is event_buffer_max_size set"),
    (200, '[{"event_id": 0, "data": {"type": "new"}}]', "stored a block ("),
])  # fmt: skip
def test_a_server_without_such_events_is_an_error_that_says_what_came(
    status: int, text: str, says: str, tmp_path: Path
) -> None:
    with serving(deque()) as server:
        server.status, server.text = status, text
        result = called("events", server.url, "--record", tmp_path / "recorded.jsonl", "--seconds", 0.01)
    assert result.exit_code == 2 and says in result.output
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "recorded.jsonl").touch()
    with serving(deque()) as server:
        server.status, server.text = 200, "[]"
        called("events", server.url, "--record", tmp_path / "recorded.jsonl", "--seconds", 0.01)
    assert (tmp_path / "recorded.jsonl").read_bytes() == b""


def test_a_file_that_cannot_be_written_is_an_error_before_the_server_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with serving(deque()) as server:
        result = called("events", server.url, "--record", tmp_path / "mine")
        assert result.exit_code == 2 and "--record is" in result.output and "something else" in result.output
        assert not server.asked.acquire(blocking=False)


def test_the_url_of_a_server_may_be_short_or_whole() -> None:
    for url in ("host:8000", "http://host:8000", "http://host:8000/", "http://host:8000/kv_cache_events"):
        assert endpoint_of(url) == "http://host:8000/kv_cache_events"
    for url in ("ftp://host", "http://", "", "http://[::1", "host:65536", "host:0", "host:x", "http://host/ü"):
        with pytest.raises(SettingsError, match="expected http://HOST:PORT"):
            endpoint_of(url)
