"""Records the requests of a server for `trtllm-kvfix replay`: when each began, its lengths, and which blocks it had.

KV events would not do: a prompt that is found whole makes none. So a request is noted in the first batch that it is in,
and its line is written when it ends, as only then its answer is known.

A line has no token. It has hashes of blocks, under a key that is drawn at each start and kept nowhere, so nobody can
guess a prompt and compare. What two starts have recorded has nothing in common, as their caches had nothing.

The executor's thread hands over what ended. A thread of ours hashes and writes.
"""

import atexit
import fcntl
import json
import os
import queue
import secrets
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.blocks.identity import Identity, identity_of, tokens_of
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import log
from trtllm_kvfix.native import BlockManagerConfig, block_hashes
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.overlay.vote import mapping_of
from trtllm_kvfix.ranks import rank_and_size
from trtllm_kvfix.settings import Settings

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation

TRIGGER = PY_EXECUTOR
PREPARE = Seam(RESOURCE_MANAGER, "ResourceManager.prepare_resources")
TERMINATE = Seam(PY_EXECUTOR, "PyExecutor._terminate_request")
FUSE = "recording"

HEAD = "trtllm_kvfix_recording"  # the field by which the first line of each start is known
FORMAT = 1
TOKENS_WAITING_MAX = 1 << 22  # of ended requests that are not written yet: some hundred MiB in Python's lists
BEGUN_MAX = 1 << 16  # a request that upstream ends in a way that we do not see is forgotten in the end
FLUSH_S = 2.0  # at the end of the process


class Begun(NamedTuple):
    at_ms: float
    prompt_tokens: int
    identity: Identity


class EndedRequest(NamedTuple):
    begun: Begun
    tokens: list[int]


class Hashes:
    """Names the blocks of a request: equal names, equal blocks behind equal ones."""

    def __init__(self, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self._key = secrets.token_bytes(16)
        seed = int.from_bytes(self._key, "little")
        self._config = BlockManagerConfig(tokens_per_block=tokens_per_block, blocks_primary=1, seed=seed)

    def of(self, identity: Identity, tokens: NDArray[np.int32]) -> list[int]:
        """A number of 63 bits for each whole block, and for what is behind them."""
        whole = block_hashes(identity.sequence(0, tokens), self._config) if len(tokens) else []
        names = [each >> 65 for each in whole]
        rest = tokens[len(whole) * self.tokens_per_block :]
        if len(rest):
            names.append(secret_name(repr((identity, whole[-1:])).encode() + rest.tobytes(), self._key))
        return names


def secret_name(content: bytes, key: bytes) -> int:
    """A number of 63 bits, for what a block is known by."""
    return int.from_bytes(blake2b(content, key=key, digest_size=8).digest(), "little") >> 1


def tokens_computed(prompt_tokens: int, answer_tokens: int) -> int:
    """How many tokens of a request have blocks to fill: nothing is computed of an answer's last one."""
    return prompt_tokens + max(answer_tokens - 1, 0)


def line_of(ended: EndedRequest, hashes: Hashes) -> bytes:
    at_ms, prompt_tokens, identity = ended.begun
    answer_tokens = max(len(ended.tokens) - prompt_tokens, 0)
    computed = ended.tokens[: tokens_computed(prompt_tokens, answer_tokens)]
    names = hashes.of(identity, np.asarray(computed, np.int32))
    return line_of_names(at_ms, prompt_tokens, answer_tokens, names, hashes.tokens_per_block)


def line_of_names(
    at_ms: float, prompt_tokens: int, answer_tokens: int, names: list[int], tokens_per_block: int
) -> bytes:
    """names: of all blocks that it filled or began, in order."""
    prompt_blocks = -(-prompt_tokens // tokens_per_block)
    fields = {
        "timestamp": round(at_ms, 3),
        "input_length": prompt_tokens,
        "output_length": answer_tokens,
        "hash_ids": names[:prompt_blocks],
        "output_hash_ids": names[prompt_blocks:],
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


class RecordingFile:
    """A file to which this process alone appends. A line is whole, or is not there."""

    def __init__(self, file: str, bytes_max: int, option: str) -> None:
        """option: by which the user named it, in errors."""
        self.name, self._bytes_max, self._option = file, bytes_max, option
        self._is_new = not os.path.lexists(file)
        self._descriptor = opened(file, f"{option} is {file}")
        self._size = os.fstat(self._descriptor).st_size
        self.why_over = ""  # why nothing more is written

    def begin(self, tokens_per_block: int) -> None:
        """The first line of each start. Raises SettingsError, and closes the file, if it cannot be written."""
        try:
            self._write(json.dumps({HEAD: FORMAT, "tokens_per_block": tokens_per_block}).encode() + b"\n")
        except OSError as error:
            self.why_over = f"{self.name}, which cannot be written: {error.strerror}"
            self.close()
            raise SettingsError(f"{self._option} is {self.why_over}") from error

    def append(self, line: bytes) -> None:
        try:
            self._write(line)
        except OSError as error:
            self.why_over = f"{self.name} cannot be written: {error.strerror or error}"

    def close(self) -> None:
        """A new file in which nothing stands goes: it would be refused as a recording."""
        if self._descriptor >= 0:
            if self._is_new and not self._size:
                with suppress(OSError):
                    Path(self.name).unlink()
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, line: bytes) -> None:
        if self.why_over:
            return
        if self._size + len(line) > self._bytes_max:
            self.why_over = f"{self.name} would have more bytes than kvfix.record_bytes_max, {self._bytes_max}"
            return
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError:
            os.ftruncate(self._descriptor, self._size)  # a full disk takes a part of a line
            raise
        self._size += len(line)


class Recording:
    """A recording of this server's requests, and the thread that writes it."""

    def __init__(self, file: str, bytes_max: int, tokens_per_block: int) -> None:
        self._file = RecordingFile(file, bytes_max, "kvfix.record")
        self._hashes = Hashes(tokens_per_block)
        self._lost = 0
        self._waiting = 0  # tokens
        self._lock = threading.Lock()  # guards the two counts
        self._queue: queue.SimpleQueue[EndedRequest | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._file.begin(tokens_per_block)
        self._say_if_over()
        self._thread = threading.Thread(target=self._run, name="kvfix-recording", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def tokens_per_block(self) -> int:
        return self._hashes.tokens_per_block

    @property
    def is_over(self) -> bool:
        return bool(self._file.why_over)

    def add(self, ended: EndedRequest) -> None:
        """Called by the executor's thread. It waits for nothing."""
        if self.is_over or os.getpid() != self._pid:
            return
        with self._lock:
            is_lost = self._waiting + len(ended.tokens) > TOKENS_WAITING_MAX
            self._waiting += 0 if is_lost else len(ended.tokens)
            self._lost += is_lost
        if not is_lost:
            self._queue.put(ended)
        elif self._lost == 1:
            log.warning("%s is not written fast enough: the recording lacks requests", self._file.name)

    def close(self) -> None:
        """Write what has ended, if that takes no time."""
        if os.getpid() == self._pid:
            self._queue.put(None)
            self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while (ended := self._queue.get()) is not None:
            with self._lock:
                self._waiting -= len(ended.tokens)
            if self.is_over:
                continue
            try:
                self._file.append(line_of(ended, self._hashes))
                fuse.of(FUSE).in_a_row = 0
            except Exception as error:
                fuse.of(FUSE).fault(error)
            self._say_if_over()

    def _say_if_over(self) -> None:
        if self.is_over:
            log.warning("the recording ends, and the server goes on: %s", self._file.why_over)


def opened(file: str, wanted: str) -> int:
    """A descriptor of a new recording, or of an older one that is continued. Raises SettingsError."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise SettingsError(f"{wanted}, which cannot be written: {error.strerror}") from error
    try:
        refuse_other(descriptor, wanted)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_other(descriptor: int, wanted: str) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise SettingsError(f"{wanted}, which is no regular file")
    if found.st_size and not os.pread(descriptor, 64, 0).startswith(f'{{"{HEAD}"'.encode()):
        raise SettingsError(f"{wanted}, which holds something else than a recording; name a new file")
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a forked child does not keep this kind
    except OSError as error:
        raise SettingsError(
            f"{wanted}, to which another process records ({error.strerror}); give each server a file of its own"
        ) from error


class RequestRecorder:
    """A participant of the overlay. One for each process; the executor's threads use it."""

    TRIGGER = TRIGGER

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._begun: dict[tuple[int, int], Begun] = {}  # by resource manager and request
        self._last_ms = 0.0
        self._recording: Recording | None = None
        self._wants_none = False  # this rank's requests are those of rank 0, or the file cannot be had

    def replacements(self, active: "Activation") -> list[Replacement]:
        if active.settings.record is None:
            return []
        up = Upstream()
        missing = [str(seam) for seam in (PREPARE, TERMINATE) if not up.has(seam.module, seam.path)]
        if missing:
            log.warning("nothing is recorded: this TensorRT-LLM has no %s", " and no ".join(missing))
            return []
        return [
            Replacement(PREPARE, partial(self._noting_what_begins, active)),
            Replacement(TERMINATE, self._noting_ends),
        ]

    def objection(self, settings: Settings, executor: Any) -> str:
        """Open the file before the engine starts. Returns why that cannot be done, or nothing."""
        if settings.record is None:
            return ""
        try:
            self._open(settings, executor.resource_manager)
        except KvfixError as error:
            return str(error)
        except Exception as error:  # a build whose executor has no such managers records nothing
            fuse.of(FUSE).fault(error)
        return ""

    def _noting_what_begins(self, active: "Activation", original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_resources(resource_manager: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if not fuse.of(FUSE).blown:
                    self._note_begun(active, resource_manager, scheduled_batch.context_requests)
            except Exception as error:
                fuse.of(FUSE).fault(error)
            return original(resource_manager, scheduled_batch, *args, **kwargs)

        return prepare_resources

    def _noting_ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _terminate_request(executor: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if self._begun and not fuse.of(FUSE).blown:
                    self._note_ended(executor.resource_manager, request)
            except Exception as error:
                fuse.of(FUSE).fault(error)
            return original(executor, request, *args, **kwargs)

        return _terminate_request

    def _note_begun(self, active: "Activation", resource_manager: Any, requests: Any) -> None:
        new = [request for request in requests if (id(resource_manager), request.py_request_id) not in self._begun]
        if not new or is_warming_up(active, resource_manager):
            return
        try:
            self._open(active.settings, resource_manager)
        except KvfixError as error:  # in a build in which no engine could be looked at before its start
            self._wants_none = True
            log.error("nothing is recorded: %s", error)
        if self._recording is None or self._recording.is_over:
            return
        for request in new:
            if not getattr(request, "is_dummy_request", False):
                self._last_ms = max(1000 * self._clock(), self._last_ms + 0.001)  # so their order is kept
                # Where blocks depend on what cannot be named, they are like no others.
                identity = identity_of(request) or Identity(salt=secrets.token_bytes(16))
                self._begun[id(resource_manager), request.py_request_id] = Begun(
                    self._last_ms, int(request.prompt_len), identity
                )
        while len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]

    def _note_ended(self, resource_manager: Any, request: Any) -> None:
        """One that is paused ends here, too, and begins again: it stays noted. One whose blocks were saved has the
        state of a request whose cache goes to another server."""
        if request.is_context_init_state or request.is_generation_in_progress_state:
            return
        begun = self._begun.pop((id(resource_manager), request.py_request_id), None)
        if begun is not None and self._recording is not None:
            self._recording.add(EndedRequest(begun, tokens_of(request)))

    def _open(self, settings: Settings, resource_manager: Any) -> None:
        """Once for each process. With attention data parallelism each rank has requests of its own, and a file."""
        if settings.record is None or self._recording is not None or self._wants_none:
            return
        managers = list(resource_manager.resource_managers.values())
        cache = next(each for each in managers if hasattr(each, "tokens_per_block"))
        rank = rank_and_size()[0]
        if rank and not getattr(mapping_of(cache), "enable_attention_dp", False):
            self._wants_none = True
            return
        file = f"{settings.record}.{rank}" if rank else settings.record
        self._recording = Recording(file, settings.record_bytes_max, int(cache.tokens_per_block))
        if not self._recording.is_over:  # else it has said why
            log.info("requests are recorded in %s, for `trtllm-kvfix replay`", file)


def is_warming_up(active: "Activation", resource_manager: Any) -> bool:
    """Upstream runs made-up requests before it serves."""
    engines = [each for each in active.engines.all() if getattr(each, "resource_manager", None) is resource_manager]
    return any(getattr(each, "is_warmup", False) is True for each in engines)


recorder = RequestRecorder()
