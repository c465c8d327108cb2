"""Sends a manager's events over ZMQ: a batch is (topic, number, payload), and subscribers can ask for missed ones.

The number counts batches from 0, in 8 bytes, big-endian. The payload is msgpack of [time, messages, data-parallel
rank]. A subscriber that missed some sends the first number that it wants to the replay endpoint. It gets (number,
payload) of each batch that is still kept, then (-1, nothing). One thread calls this: the one that drains the manager's
events.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.events.wire import Translator
from trtllm_kvfix.log import log
from trtllm_kvfix.native import BlockEvent

END = (-1).to_bytes(8, "big", signed=True)
BATCHES_KEPT = 10_000
BATCHES_WAITING_MAX = 100_000  # per subscriber that is slow; it loses what comes beyond
# Answered in one call, so that whoever asks without end does not keep the publishing thread: so many questions, and no
# further one behind so many batches, because eight bytes may ask for all that are kept.
QUESTIONS_AT_ONCE = 16
BATCHES_AT_ONCE = 1_000
# In answers that nobody has read yet, of all subscribers together: each has a queue, and nobody counts subscribers.
BATCHES_UNREAD_MAX = 100_000
# Of one frame: a question's has 8, and a subscriber's name in ZMQ's handshake up to 255. ZMQ has no limit for frames.
QUESTION_BYTES_MAX = 1_024


class Publisher:
    def __init__(
        self,
        translator: Translator,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        data_parallel_rank: int = 0,
        batches_kept: int = BATCHES_KEPT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        zmq, msgspec = installed()
        self._translator, self._topic, self._rank, self._clock = translator, topic.encode(), data_parallel_rank, clock
        self._encode: Callable[[object], bytes] = msgspec.msgpack.encode
        self._next = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=batches_kept)
        self._zmq, context = zmq, zmq.Context.instance()
        self._publish = context.socket(zmq.PUB)
        self._publish.set_hwm(BATCHES_WAITING_MAX)
        self._replay = None if replay_endpoint is None else context.socket(zmq.ROUTER)
        if self._replay is not None:  # ROUTER drops what a queue cannot hold: a whole answer fits, with its end
            self._replay.set(zmq.SNDHWM, batches_kept + 1)
            self._replay.set(zmq.MAXMSGSIZE, QUESTION_BYTES_MAX)
        self._unread: list[tuple[Any, int]] = []  # what says that an answer has gone out, and its batches
        self.questions_refused = 0  # because too much was unread
        self._process = os.getpid()
        try:
            self._publish.bind(endpoint)
            if self._replay is not None:
                self._replay.bind(replay_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise KvfixError(f"events: {endpoint} or {replay_endpoint} cannot be bound: {error}") from error

    def publish(self, events: Iterable[BlockEvent]) -> int:
        """Send one batch, if there are events. Returns how many messages it has."""
        self.answer_replays()
        messages = self._translator.translate(events)
        if messages:
            number = self._next.to_bytes(8, "big")
            payload = self._encode([self._clock(), messages, self._rank])
            self._next += 1
            self._kept.append((number, payload))
            self._publish.send_multipart((self._topic, number, payload))
        return len(messages)

    def answer_replays(self) -> int:
        """Answer requests that have arrived, as far as one call does, and return how many. `publish` does this, too."""
        self._check()
        answered = sent = 0
        while self._replay is not None and answered < QUESTIONS_AT_ONCE and sent < BATCHES_AT_ONCE:
            if not self._replay.poll(0):
                break
            sent += self._answer(self._replay, *self._replay.recv_multipart())
            answered += 1
        return answered

    @property
    def batches_unread(self) -> int:
        """In answers that subscribers have not read yet. From BATCHES_UNREAD_MAX on, questions are refused."""
        self._unread = [(sent, batches) for sent, batches in self._unread if not sent.done]
        return sum(batches for _, batches in self._unread)

    def _refuses(self) -> bool:
        """Read and drop the question: one that waited would keep ZMQ from seeing which subscribers have gone."""
        unread = self.batches_unread
        if unread < BATCHES_UNREAD_MAX:
            return False
        self.questions_refused += 1
        if self.questions_refused == 1:
            log.warning(
                "events: a question for missed batches gets no answer, because answers of %d batches wait to be read "
                "(limit %d); usual cause: subscribers that ask and do not read. This is logged once",
                unread,
                BATCHES_UNREAD_MAX,
            )
        return True

    def _answer(self, replay: Any, who: bytes, *rest: bytes) -> int:
        """Send the answer, and return the number of its batches."""
        if len(rest) != 2 or len(rest[1]) != 8:  # not a request: it gets no answer
            return 0
        if self._refuses():
            return 0
        wanted = [batch for batch in self._kept if batch[0] >= rest[1]]
        # One frame in every message of the answer: ZMQ lets go of it when the last has been read, or dropped with its
        # subscriber.
        mark = self._zmq.Frame(b"", track=True, copy=False, copy_threshold=0)
        for number, payload in [*wanted, (END, b"")]:
            replay.send_multipart((who, mark, number, payload), copy=False)
        self._unread.append((mark.tracker, len(wanted) + 1))
        return len(wanted)

    def _check(self) -> None:
        if os.getpid() != self._process:  # a socket of the parent's would wait for the parent's threads, for ever
            raise KvfixError("events: this publisher was made in a parent process; make one in this process")
        if self._publish.closed:
            raise KvfixError("events: this publisher is closed")

    def close(self) -> None:
        """Drop what subscribers have not taken: a dead one would hold up the exit."""
        for socket in (self._publish, self._replay):
            if socket is not None:
                socket.close(linger=0)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def installed() -> tuple[Any, Any]:
    try:
        import msgspec  # noqa: PLC0415
        import zmq  # noqa: PLC0415
    except ImportError as error:
        raise KvfixError(f"events need {error.name}: pip install 'trtllm-kvfix[events]'") from error
    return zmq, msgspec
