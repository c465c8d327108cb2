"""A manager's events as the KV events that vLLM publishes and that Dynamo's router reads, and their way there over ZMQ.

A block there is a 64-bit number on a medium, so it carries the first half of our hash. A block that moves is stored on
the new medium, with everything that a router needs to know, and removed from the old one. Our event of a move does not
repeat all that, so the translator remembers the event by which the block was stored.

A batch is (topic, number, payload), and subscribers can ask for missed ones. The number counts batches from 0, in 8
bytes, big-endian. The payload is msgpack of [time, messages, data-parallel rank]. A subscriber that missed some sends
the first number that it wants to the replay endpoint. It gets (number, payload) of each batch that is still kept, then
(-1, nothing). One thread calls this: the one that drains the manager's events.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import log
from trtllm_kvfix.native import BlockEvent

# ---- messages: plain values, for which nothing needs to be installed ----

Shape = Literal["map", "array"]
Message = dict[str, Any] | list[Any]

MEDIUMS = {"primary": "GPU", "host": "CPU"}
FIRST_HALF = 2**64 - 1
# In the order of vLLM's arrays, which have no place for what Dynamo alone reads. It takes messages of either shape.
STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
REMOVED = ("block_hashes", "medium", "group_idx")


@dataclass
class KnownBlock:
    """A block as a router knows it."""

    message: dict[str, Any]
    tier: str


class Translator:
    """Translates one manager's events, all of them and in order.

    `windows`: its window sizes, where it has any. `lora_names`: by LoRA id; may grow while the manager runs.
    """

    def __init__(
        self,
        windows: Sequence[int] | None = None,
        shape: Shape = "map",
        *,
        lora_names: Mapping[int, str] | None = None,
    ) -> None:
        self._windows = tuple(windows or ())
        self._groups = groups_of(self._windows)
        self._lora_names: Mapping[int, str] = {} if lora_names is None else lora_names
        self._shape = shape
        self._known: dict[tuple[int | None, int], KnownBlock] = {}
        self._next_id = 0

    def translate(self, events: Iterable[BlockEvent]) -> list[Message]:
        return [shaped(message, self._shape) for event in events for message in self._messages(event)]

    def _messages(self, event: BlockEvent) -> list[dict[str, Any]]:
        lost = event.event_id != self._next_id
        self._next_id = event.event_id + 1
        messages = self._forget_all() if lost else []
        key = (event.window_size, event.block_hash)
        if event.kind == "stored":
            self._known[key] = KnownBlock(self._stored(event), event.tier)
            return [*messages, self._known[key].message]
        known = self._known.get(key)
        if known is None:  # announced by an event that was lost
            return messages
        if event.kind == "removed":
            del self._known[key]
            return [*messages, removed(known)]
        if event.tier == known.tier:  # another priority is nothing to a router
            return messages
        before, known.tier = removed(known), event.tier
        known.message = {**known.message, "medium": MEDIUMS[event.tier]}
        return [*messages, known.message, before]

    def _stored(self, event: BlockEvent) -> dict[str, Any]:
        parent = event.parent_hash
        return {
            "type": "BlockStored",
            "block_hashes": [event.block_hash & FIRST_HALF],
            "parent_block_hash": None if parent is None else parent & FIRST_HALF,
            "token_ids": event.tokens,
            "block_size": event.tokens_per_block,
            "lora_id": event.lora_id,
            "medium": MEDIUMS[event.tier],
            "lora_name": self._lora_name(event.lora_id),
            "cache_salt": salt_text(event.salt),
            "extra_keys": [extra_keys(event)],
            "block_mm_infos": [images(event)],
            **self._group(event.window_size),
        }

    def _lora_name(self, lora_id: int | None) -> str | None:
        """Dynamo distinguishes adapters by their names. One without a name must not pass for the model without any."""
        return None if lora_id is None else self._lora_names.get(lora_id, str(lora_id))

    def _group(self, window_size: int | None) -> dict[str, Any]:
        if window_size not in self._groups:
            raise KvfixError(
                f"events: a block of window {window_size}, but Translator was given the windows {list(self._windows)}: "
                "give it the manager's config.window_sizes"
            )
        return self._groups[window_size]

    def _forget_all(self) -> list[dict[str, Any]]:
        """Clear everything: a router that counts on a block that has gone sends requests to the wrong place."""
        self._known.clear()
        return [{"type": "AllBlocksCleared"}]


def groups_of(windows: Sequence[int]) -> dict[int | None, dict[str, Any]]:
    """Fields that describe each window. A router follows full attention alone: here the largest window."""
    groups: dict[int | None, dict[str, Any]] = {}
    for group, size in enumerate(windows):
        full = size == max(windows)
        groups[size] = {
            "group_idx": group,
            "kv_cache_spec_kind": "full_attention" if full else "sliding_window",
            "kv_cache_spec_sliding_window": None if full else size,
        }
    none = {"group_idx": None, "kv_cache_spec_kind": None, "kv_cache_spec_sliding_window": None}
    return groups or {None: none}


def removed(known: KnownBlock) -> dict[str, Any]:
    return {"type": "BlockRemoved", **{name: known.message[name] for name in REMOVED}}


def extra_keys(event: BlockEvent) -> list[Any] | None:
    """Further identity of the block: images as (hex digest, offset), and with a prompt's first block the salt."""
    spans: list[Any] = [(digest.hex(), begin) for begin, _, digest in event.extra_keys]
    salt = salt_text(event.salt)
    return spans + ([salt] if salt is not None and event.parent_hash is None else []) or None


def images(event: BlockEvent) -> dict[str, Any] | None:
    """Images as Dynamo wants them: of each digest the first 64 bits, and no offsets, which are no part of its
    hashes."""
    objects = [{"mm_hash": int.from_bytes(digest[:8], "big"), "offsets": []} for _, _, digest in event.extra_keys]
    return {"mm_objects": objects} if objects else None


def salt_text(salt: str | bytes | int | None) -> str | None:
    """Salts are text there. Two that read alike here still have blocks with different hashes."""
    if isinstance(salt, bytes):
        return salt.hex()
    return None if salt is None else str(salt)


def shaped(message: dict[str, Any], shape: Shape) -> Message:
    if shape == "map":
        return message
    names = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}[message["type"]]
    return [message["type"], *(message[name] for name in names)]


# ---- their way ----

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
