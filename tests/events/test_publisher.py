"""A real subscriber hears what was published, and gets again what it missed."""

import sys
from types import GenericAlias
from typing import Any

import pytest

from tests.core.scenes import BLOCK, leave_behind, manager, prompt
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.events.publisher import END, Publisher
from trtllm_kvfix.events.wire import Shape, Translator

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")
WAIT_MS = 60_000


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


@pytest.fixture
def context() -> Any:
    return zmq.Context.instance()


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


@pytest.mark.parametrize("endpoint", ["inproc://kv-events", "tcp://127.0.0.1:*"])
@pytest.mark.parametrize("shape", ["map", "array"])
def test_a_subscriber_hears_every_batch(context: Any, endpoint: str, shape: Shape) -> None:
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


def test_an_endpoint_that_is_taken_is_named() -> None:
    with Publisher(Translator(), "inproc://kv-taken"), pytest.raises(KvfixError, match="inproc://kv-taken"):
        Publisher(Translator(), "inproc://kv-taken")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(KvfixError, match=r"events need zmq: pip install 'trtllm-kvfix\[events\]'"):
        Publisher(Translator(), "inproc://kv-none")
