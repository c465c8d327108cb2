"""A real subscriber hears what was published, and gets again what it missed."""

import subprocess
import sys
from types import GenericAlias
from typing import Any

import pytest

from tests.core.scenes import BLOCK, leave_behind, manager, prompt
from tests.events.asking import WAIT_MS, answers, asked, one_block
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.events import publisher as module
from trtllm_kvfix.events.publisher import END, QUESTIONS_AT_ONCE, Publisher, Shape, Translator

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")


def fields(array: bool) -> Any:
    """Readers of either shape, declared as vLLM's subscribers declare them."""
    options: dict[str, Any] = {"array_like": array, "omit_defaults": True, "gc": False}
    stored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[int]),
            ("parent_block_hash", int | None),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", int | None),
            ("medium", str | None),
            ("lora_name", str | None),
            ("extra_keys", list[tuple[Any, ...] | None] | None, None),
            ("group_idx", int | None, None),
            ("kv_cache_spec_kind", str | None, None),
            ("kv_cache_spec_sliding_window", int | None, None),
        ],
        tag=True,
        **options,
    )
    removed = msgspec.defstruct(
        "BlockRemoved",
        [("block_hashes", list[int]), ("medium", str | None), ("group_idx", int | None, None)],
        tag=True,
        **options,
    )
    cleared = msgspec.defstruct("AllBlocksCleared", [], tag=True, **options)
    batch = [
        ("ts", float),
        ("events", GenericAlias(list, (stored | removed | cleared,))),
        ("data_parallel_rank", int | None, None),
    ]
    return msgspec.defstruct("KVEventBatch", batch, array_like=True, omit_defaults=True, gc=False)


def port_of(publisher: Publisher) -> str:
    return str(publisher._publish.getsockopt_string(zmq.LAST_ENDPOINT))


def subscribed(context: Any, publisher: Publisher, topic: str) -> Any:
    """Heard by the publisher: what is sent from now on arrives."""
    socket = context.socket(zmq.SUB)
    socket.connect(port_of(publisher))
    socket.subscribe(topic)
    for _ in range(WAIT_MS // 10):  # a subscription takes its way; a probe shows that it has come
        publisher._publish.send_multipart((topic.encode(), b"probe", b""))
        if socket.poll(10):
            return socket
    raise AssertionError("no subscription")


def heard(socket: Any) -> list[bytes]:
    """The next batch; probes that came late are none."""
    while socket.poll(WAIT_MS):
        frames: list[bytes] = socket.recv_multipart()
        if frames[1] != b"probe":
            return frames
    raise AssertionError("no batch")


@pytest.mark.parametrize("endpoint", ["inproc://kv-{}", "tcp://127.0.0.1:*"])
@pytest.mark.parametrize("shape", ["map", "array"])
def test_a_subscriber_hears_every_batch(context: Any, endpoint: str, shape: Shape) -> None:
    endpoint = endpoint.format(shape)  # a name is free again only after a while
    m = manager(primary=8, events_max=100)
    with Publisher(Translator(shape=shape), endpoint, topic="kv@one", data_parallel_rank=3) as publisher:
        socket = subscribed(context, publisher, "kv@")
        decode = msgspec.msgpack.Decoder(fields(shape == "array")).decode
        for number in range(3):
            leave_behind(m, number, prompt(number, 2 * BLOCK), salt="tenant")
            assert publisher.publish(m.get_latest_events()) == 2
            topic, counted, payload = heard(socket)
            assert (topic, int.from_bytes(counted, "big")) == (b"kv@one", number)
            batch = decode(payload)
            assert batch.data_parallel_rank == 3
            first, second = batch.events
            assert second.parent_block_hash == first.block_hashes[0]
            assert first.token_ids + second.token_ids == prompt(number, 2 * BLOCK)
            assert (first.extra_keys, second.extra_keys) == ([("tenant",)], [None])
        assert publisher.publish(m.get_latest_events()) == 0, "nothing to say is not said"
        socket.close(linger=0)


def test_who_missed_batches_gets_them_again(context: Any) -> None:
    m = manager(primary=8, events_max=100)
    replay = "inproc://kv-replay"
    with Publisher(Translator(), "inproc://kv-missed", replay_endpoint=replay, batches_kept=3) as publisher:
        for number in range(5):
            leave_behind(m, number, prompt(number, BLOCK))
            publisher.publish(m.get_latest_events())
        client = context.socket(zmq.DEALER)
        client.connect(replay)
        client.send_multipart((b"", b"what?"))
        client.send_multipart((b"", (3).to_bytes(8, "big")))
        publisher.answer_replays()
        answers: list[list[bytes]] = []
        while not answers or answers[-1][0] != END:
            assert client.poll(WAIT_MS)
            _, *answer = client.recv_multipart()
            answers.append(answer)
        assert [int.from_bytes(number, "big") for number, _ in answers[:-1]] == [3, 4]
        assert all(msgspec.msgpack.decode(payload)[1] for _, payload in answers[:-1])
        client.close(linger=0)


def test_an_answer_longer_than_a_queue_arrives_whole(context: Any) -> None:
    translator, replay = Translator(), "inproc://kv-long"
    events = one_block(translator)
    with Publisher(translator, "inproc://kv-long-live", replay_endpoint=replay) as publisher:
        for _ in range(3_000):  # ZMQ's queues hold 1,000 at each end
            publisher.publish(events)
        client = asked(context, replay, 0)
        publisher.answer_replays()
        assert answers(client) == list(range(3_000))
        client.close(linger=0)


def test_questions_without_end_do_not_keep_the_publishing_thread(context: Any) -> None:
    replay = "inproc://kv-flood"
    with Publisher(Translator(), "inproc://kv-flood-live", replay_endpoint=replay) as publisher:
        client = asked(context, replay, *range(2 * QUESTIONS_AT_ONCE + 1))
        assert [publisher.answer_replays() for _ in range(4)] == [QUESTIONS_AT_ONCE, QUESTIONS_AT_ONCE, 1, 0]
        client.close(linger=0)


def test_questions_for_all_that_is_kept_are_answered_in_several_calls(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCHES_AT_ONCE", 4)
    translator, replay = Translator(), "inproc://kv-greedy"
    events = one_block(translator)
    with Publisher(translator, "inproc://kv-greedy-live", replay_endpoint=replay) as publisher:
        for _ in range(3):
            publisher.publish(events)
        client = asked(context, replay, 0, 0, 0)
        assert [publisher.answer_replays() for _ in range(3)] == [2, 1, 0]
        assert [answers(client) for _ in range(3)] == [[0, 1, 2]] * 3, "each arrives whole"
        client.close(linger=0)


def test_a_slow_subscriber_holds_nobody_up_and_fills_its_gap(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCHES_WAITING_MAX", 4)  # and a subscriber's own queue holds 1,000
    translator, replay = Translator(), "inproc://kv-slow"
    events = one_block(translator)
    with Publisher(translator, "inproc://kv-slow-live", replay_endpoint=replay) as publisher:
        socket = subscribed(context, publisher, "")
        for _ in range(3_000):
            publisher.publish(events)
        numbers = [int.from_bytes(heard(socket)[1], "big")]
        while socket.poll(0):
            numbers.append(int.from_bytes(heard(socket)[1], "big"))
        assert numbers == list(range(len(numbers))) and len(numbers) < 3_000
        published = 3_000
        while not socket.poll(10):  # the publisher learns after a while that there is room again
            published += bool(publisher.publish(events))
            assert published < 3_000 + WAIT_MS // 10
        assert 3_000 <= int.from_bytes(heard(socket)[1], "big") < published
        client = asked(context, replay, len(numbers))
        publisher.answer_replays()
        assert numbers + answers(client) == list(range(published))
        client.close(linger=0)
        socket.close(linger=0)


def test_a_closed_publisher_says_so() -> None:
    publisher = Publisher(Translator(), "inproc://kv-closed")
    publisher.close()
    publisher.close()
    with pytest.raises(KvfixError, match="closed"):
        publisher.publish([])


FORKS = """
import os, signal, sys
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.events.publisher import Publisher, Translator

publisher = Publisher(Translator(), "inproc://live", replay_endpoint="inproc://replay")
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        publisher.publish([])
    except KvfixError as error:
        publisher.close()
        os._exit(0 if "made in a parent process" in str(error) else 2)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
publisher.publish([])
print("served")
"""


def test_a_child_may_not_use_the_publisher_of_its_parent() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout) == (0, "served\n"), ended.stderr


def test_an_endpoint_that_is_taken_is_named() -> None:
    with Publisher(Translator(), "inproc://kv-taken"), pytest.raises(KvfixError, match="inproc://kv-taken"):
        Publisher(Translator(), "inproc://kv-taken")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(KvfixError, match=r"events need zmq: pip install 'trtllm-kvfix\[events\]'"):
        Publisher(Translator(), "inproc://kv-none")
