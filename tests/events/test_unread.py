"""Answers that nobody reads, and questions that nobody should send, cost the publisher no more than a limit."""

import time
from typing import Any

import pytest

from tests.events.asking import WAIT_MS, answers, asked, one_block, zmq
from trtllm_kvfix.events import publisher as module
from trtllm_kvfix.events.publisher import Publisher, Translator


def three_published(publisher: Publisher, translator: Translator) -> None:
    events = one_block(translator)
    for _ in range(3):
        publisher.publish(events)


def let_go(publisher: Publisher, batches: int) -> None:
    """Until ZMQ has let go of that much: it says so in a thread of its own."""
    end = time.monotonic() + WAIT_MS / 1_000
    while publisher.batches_unread > batches:
        assert time.monotonic() < end, f"{publisher.batches_unread} batches are still kept"
        publisher.answer_replays()


def test_answers_that_nobody_reads_do_not_grow_without_limit(
    context: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BATCHES_UNREAD_MAX", 8)
    translator, replay = Translator(), "inproc://kv-unread"
    with Publisher(translator, "inproc://kv-unread-live", replay_endpoint=replay) as publisher:
        three_published(publisher, translator)
        clients = [asked(context, replay, 0) for _ in range(5)]
        assert publisher.answer_replays() == 5
        assert publisher.batches_unread == 8, "an answer is three batches and an end"
        assert publisher.questions_refused == 3
        (warning,) = caplog.messages
        assert "8 batches" in warning and "limit 8" in warning
        for client in clients:
            client.close(linger=0)


def test_who_reads_or_goes_makes_room_for_the_next_answer(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCHES_UNREAD_MAX", 4)
    translator, replay = Translator(), "inproc://kv-room"
    with Publisher(translator, "inproc://kv-room-live", replay_endpoint=replay) as publisher:
        three_published(publisher, translator)
        reads = asked(context, replay, 0)
        publisher.answer_replays()
        assert answers(reads) == [0, 1, 2]
        let_go(publisher, 0)
        goes = asked(context, replay, 0)
        publisher.answer_replays()
        assert publisher.batches_unread == 4
        goes.close(linger=0)
        let_go(publisher, 0)
        comes = asked(context, replay, 1)
        publisher.answer_replays()
        assert answers(comes) == [1, 2]
        assert publisher.questions_refused == 0
        reads.close(linger=0)
        comes.close(linger=0)


def test_a_long_question_is_not_taken_and_a_long_name_is(context: Any) -> None:
    with Publisher(Translator(), "inproc://kv-question", replay_endpoint="tcp://127.0.0.1:*") as publisher:
        assert publisher._replay is not None
        client = context.socket(zmq.DEALER)
        client.routing_id = b"n" * 255
        monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        client.connect(publisher._replay.getsockopt_string(zmq.LAST_ENDPOINT))
        client.send_multipart((b"", bytes(8)))
        while not client.poll(1):
            publisher.answer_replays()
        assert answers(client) == []
        client.send_multipart((b"", bytes(2_000)))
        assert monitor.poll(WAIT_MS), "it is thrown out"
        assert publisher.answer_replays() == 0
        client.disable_monitor()
        monitor.close(linger=0)
        client.close(linger=0)
