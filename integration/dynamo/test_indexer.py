"""Dynamo's own KV indexer hears a publisher of ours, over ZMQ, and answers what is cached where.

Needs Dynamo's runtime: pip install --no-deps --target build/dynamo ai-dynamo-runtime
"""

import itertools
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.scenes import BLOCK, leave_behind, manager, prompt, push_to_host
from tests.ports import free_ports
from trtllm_kvfix.events.publisher import Publisher, Shape, Translator
from trtllm_kvfix.native import BlockManager

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

ROOT = Path(__file__).resolve().parents[2]
DYNAMO = ROOT / "build" / "dynamo"
pytestmark = pytest.mark.skipif(
    not DYNAMO.is_dir(), reason="needs Dynamo: pip install --no-deps --target build/dynamo ai-dynamo-runtime"
)
TRIES = 20_000  # of requests that take a millisecond
MODEL = "model"
TWO_BLOCKS = 2 * BLOCK


class Indexer:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def found(self, tokens: list[int], **identity: str) -> dict[str, int]:
        """Leading tokens that the only worker has, on the GPU, and on all that is no farther than host memory."""
        instances = self.ask("/query", model_name=MODEL, token_ids=tokens, **identity)["instances"]
        return {medium: instances.get("1", {}).get(medium, 0) for medium in ("gpu", "cpu")}

    def comes_to_find(self, tokens: list[int], gpu: int, cpu: int, **identity: str) -> None:
        eventually(lambda: self.found(tokens, **identity) == {"gpu": gpu, "cpu": cpu})


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(TRIES):
        try:
            if holds():
                return
        except urllib.error.URLError:  # it is still starting
            continue
    raise AssertionError("it never came to hold")


@pytest.fixture(scope="module")
def indexer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexer]:
    port = free_ports(1)
    command = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
    environ = {**os.environ, "PYTHONPATH": str(DYNAMO)}
    log = tmp_path_factory.mktemp("dynamo") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environ, cwd=log.parent, stdout=out, stderr=out)
    try:
        served = Indexer(port)
        eventually(lambda: process.poll() is None and served.ask("/workers") == [])
        yield served
    finally:
        process.kill()
        process.wait()


class Worker:
    """A manager whose events the indexer hears."""

    def __init__(self, indexer: Indexer, publisher: Publisher, books: BlockManager) -> None:
        self.publisher, self.books = publisher, books
        eventually(lambda: self._heard(indexer))

    def say(self) -> None:
        self.publisher.publish(self.books.get_latest_events())

    def _heard(self, indexer: Indexer) -> bool:
        """A subscription takes its way: the same block is stored until it is heard."""
        leave_behind(self.books, 0, prompt(0, BLOCK))
        self.say()
        if indexer.found(prompt(0, BLOCK))["gpu"] == BLOCK:
            return True
        self.books.reset_reuse_state()
        return False


@pytest.fixture
def listening(indexer: Indexer) -> Iterator[Callable[..., Worker]]:
    port = free_ports(2)
    live, replay = (f"tcp://127.0.0.1:{port + offset}" for offset in range(2))
    publishers: list[Publisher] = []

    def make(shape: Shape = "map", **config: Any) -> Worker:
        windows = config.get("window_sizes")
        translator = Translator(windows, shape, lora_names={7: "poet"})
        publishers.append(Publisher(translator, live, replay_endpoint=replay))
        indexer.ask(
            "/register", instance_id=1, endpoint=live, replay_endpoint=replay, model_name=MODEL, block_size=BLOCK
        )
        return Worker(indexer, publishers[0], manager(events_max=10_000, **config))

    yield make
    indexer.ask("/unregister", instance_id=1, model_name=MODEL)
    publishers[0].close()


@pytest.mark.parametrize("shape", ["map", "array"])
def test_a_prefix_is_found_as_far_as_it_is_cached(
    indexer: Indexer, listening: Callable[..., Worker], shape: Shape
) -> None:
    worker = listening(shape, primary=8)
    leave_behind(worker.books, 1, prompt(1, TWO_BLOCKS))
    worker.say()
    indexer.comes_to_find(prompt(1, 3 * BLOCK), gpu=TWO_BLOCKS, cpu=TWO_BLOCKS)


def test_tenants_and_adapters_find_their_own_blocks_and_no_others(
    indexer: Indexer, listening: Callable[..., Worker]
) -> None:
    worker = listening(primary=20)
    leave_behind(worker.books, 1, prompt(1, TWO_BLOCKS), salt="tenant")
    leave_behind(worker.books, 2, prompt(2, TWO_BLOCKS), salt="ab" * 32)  # reads like the digest of an image
    leave_behind(worker.books, 3, prompt(3, TWO_BLOCKS), salt=b"\xff")
    leave_behind(worker.books, 4, prompt(4, TWO_BLOCKS), lora_id=7)
    leave_behind(worker.books, 5, prompt(5, TWO_BLOCKS))
    worker.say()
    indexer.comes_to_find(prompt(5, TWO_BLOCKS), gpu=TWO_BLOCKS, cpu=TWO_BLOCKS)
    nothing, all_of_it = {"gpu": 0, "cpu": 0}, {"gpu": TWO_BLOCKS, "cpu": TWO_BLOCKS}
    for family in (1, 2, 3, 4):
        assert indexer.found(prompt(family, TWO_BLOCKS)) == nothing
    assert indexer.found(prompt(1, TWO_BLOCKS), cache_salt="tenant") == all_of_it
    assert indexer.found(prompt(2, TWO_BLOCKS), cache_salt="ab" * 32) == all_of_it
    assert indexer.found(prompt(3, TWO_BLOCKS), cache_salt="ff") == all_of_it
    assert indexer.found(prompt(4, TWO_BLOCKS), lora_name="poet") == all_of_it
    assert indexer.found(prompt(5, TWO_BLOCKS), cache_salt="tenant") == nothing


def test_a_block_is_found_where_it_moved_and_not_where_it_was(
    indexer: Indexer, listening: Callable[..., Worker]
) -> None:
    worker = listening(primary=4, host=4)
    leave_behind(worker.books, 1, prompt(1, TWO_BLOCKS))
    worker.say()
    indexer.comes_to_find(prompt(1, TWO_BLOCKS), gpu=TWO_BLOCKS, cpu=TWO_BLOCKS)
    push_to_host(worker.books, 2, blocks=4)
    worker.say()
    indexer.comes_to_find(prompt(1, TWO_BLOCKS), gpu=0, cpu=TWO_BLOCKS)
    worker.books.reset_reuse_state()
    worker.say()
    indexer.comes_to_find(prompt(1, TWO_BLOCKS), gpu=0, cpu=0)


def test_of_several_windows_the_one_of_full_attention_counts(
    indexer: Indexer, listening: Callable[..., Worker]
) -> None:
    worker = listening(primary=40, window_sizes=[BLOCK, 100 * BLOCK])
    leave_behind(worker.books, 1, prompt(1, 4 * BLOCK))
    worker.say()
    indexer.comes_to_find(prompt(1, 4 * BLOCK), gpu=4 * BLOCK, cpu=4 * BLOCK)


def test_an_image_is_part_of_a_block(indexer: Indexer, listening: Callable[..., Worker]) -> None:
    worker = listening(primary=8)
    leave_behind(worker.books, 1, prompt(1, BLOCK), extra_keys=[(1, 3, bytes(range(32)))])
    leave_behind(worker.books, 2, prompt(2, BLOCK))
    worker.say()
    indexer.comes_to_find(prompt(2, BLOCK), gpu=BLOCK, cpu=BLOCK)
    assert indexer.found(prompt(1, BLOCK)) == {"gpu": 0, "cpu": 0}, "the same tokens without the image"


class Lost:
    """A socket whose messages do not arrive."""

    closed = False

    def send_multipart(self, frames: object) -> None:
        pass


def test_what_was_missed_is_asked_for_again(
    indexer: Indexer, listening: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = listening(primary=2 * TRIES)
    with monkeypatch.context() as without_a_network:
        without_a_network.setattr(worker.publisher, "_publish", Lost())
        leave_behind(worker.books, 1, prompt(1, TWO_BLOCKS))
        worker.say()
    families = itertools.count(2)

    def filled() -> bool:
        """The next batch shows the gap, and the next call of publish answers the question."""
        leave_behind(worker.books, 1, prompt(next(families), BLOCK))
        worker.say()
        return indexer.found(prompt(1, TWO_BLOCKS))["gpu"] == TWO_BLOCKS

    eventually(filled)
