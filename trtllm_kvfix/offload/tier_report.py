"""What the host tier reports: each rank's file for `trtllm-kvfix status`, and numbers for the metrics and the log."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtllm_kvfix import runtime_files
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.ledger import Ended
from trtllm_kvfix.offload.policy import Taken

FORMAT = 1
SUFFIX = ".offload"


@dataclass(kw_only=True)
class TierReport:
    """This rank's file, beside the attestation of its process. `folder` is None if no report is wanted.

    The file is written when the tier is built, at every transfer that fails on this rank, and when the tier is given
    back. If it cannot be written, because the folder is full or belongs to another user, the log says so, and serving
    continues.
    """

    folder: Path | None = None
    rank: int = 0
    slots: int = 0
    requested_bytes: int = 0
    mapped_bytes: int = 0
    pinned_bytes: int = 0
    transfers_failed: int = 0
    first_error: str = ""
    remote: str = ""  # the state of the remote tier, if there is one

    def built(self, *, slots: int, requested: int, mapped: int, pinned: int) -> None:
        self.slots, self.requested_bytes, self.mapped_bytes = slots, requested, mapped
        counters.offload_requested_bytes.put(requested)
        counters.offload_pool_bytes.put(mapped)
        self.pinned(pinned)

    def pinned(self, count: int) -> None:
        """Note how many bytes are registered with the device now."""
        self.pinned_bytes = count
        counters.offload_pinned_bytes.put(count)
        self._write()

    def remote_is(self, text: str) -> None:
        if text != self.remote:
            self.remote = text
            self._write()

    def failed(self, errors: Sequence[str]) -> None:
        """Note that transfers failed on this rank. All ranks together decide what becomes of them."""
        if not errors:
            return
        self.transfers_failed += len(errors)
        self.first_error = self.first_error or errors[0]
        counters.offload_rank_errors.add(len(errors))
        self._write()

    def _write(self) -> None:
        if self.folder is None:
            return
        values = {name: value for name, value in asdict(self).items() if name != "folder"}
        entry = {"format": FORMAT, **runtime_files.signature(), **values}
        try:
            runtime_files.write(self.folder, SUFFIX, entry)
        except (OSError, KvfixError) as error:
            log.warning("`trtllm-kvfix status` will not know of the host tier: %s", error)
            self.folder = None


def live(folder: Path) -> list[dict[str, Any]]:
    """The reports of processes that still run on this host."""
    return sorted(runtime_files.live(folder, SUFFIX, FORMAT), key=lambda entry: (entry["rank"], entry["pid"]))


OPAQUE_TOLD_MAX = 3
ERRORS_TOLD_MAX = 10


class Tally:
    """Numbers that show whether the host tier helps. Every so many requests they are logged.

    The scheduler's thread counts; other threads read `counters`.
    """

    def __init__(self, log_every_requests: int) -> None:
        self._log_every_requests = log_every_requests
        self._finished = 0
        self._opaque = 0
        self._errors_told = 0
        self._prompt = self._device = self._host = 0  # tokens, since the last line of the log
        self._stored = self._loaded = self._errors = 0  # blocks, transfers

    def looked_up(self, prompt: int, device: int) -> None:
        self._prompt += prompt
        self._device += device
        counters.offload_prompt_tokens.add(prompt)
        counters.offload_device_hit_tokens.add(device)

    def hit(self, tokens: int) -> None:
        """So many tokens of a prompt have come. A promise is none: a load may fail, or bring less."""
        if tokens > 0:
            self._host += tokens
            counters.offload_host_hit_tokens.add(tokens)
            counters.offload_host_hits.add()

    def opaque(self, request_id: int) -> None:
        self._opaque += 1
        counters.offload_requests_skipped.add()
        if self._opaque <= OPAQUE_TOLD_MAX:
            log.warning("request %d is left alone: its blocks depend on more than its tokens", request_id)

    def stored(self, blocks: int, ended: Ended) -> None:
        if ended.no_room:
            self.dropped(blocks)
            return
        if ended.error:
            self._failed("store", blocks, ended.error)
            return
        self._stored += blocks
        flight.note(flight.STORED, blocks)
        counters.offload_stored_blocks.add(blocks)

    def loaded(self, blocks: int, ended: Ended) -> None:
        """A load that found no room is not counted here: its request computes instead, and counts as that."""
        counters.offload_bad_blocks.add(len(ended.bad_slots))
        if ended.no_room:
            return
        if ended.error:
            self._failed("load", blocks, ended.error)
            return
        self._loaded += blocks
        flight.note(flight.LOADED, blocks)
        counters.offload_loaded_blocks.add(blocks)

    def dropped(self, blocks: int) -> None:
        counters.offload_dropped_blocks.add(blocks)

    def taken(self, taken: Taken) -> None:
        """Count what a tier has not taken, and what only passes through the host pool."""
        if taken.is_staged:
            counters.offload_remote_staged_blocks.add(len(taken.slots))
            counters.offload_remote_dropped_blocks.add(taken.left)
        elif taken.is_declined:
            counters.offload_declined_blocks.add(taken.left)
        else:
            self.dropped(taken.left)

    def show(self, index: TierIndex) -> None:
        stats = index.stats()
        counters.offload_pool_blocks.put(stats.slots)
        counters.offload_pool_free_blocks.put(stats.free)
        counters.offload_pool_busy_blocks.put(stats.owned)
        counters.offload_evicted_blocks.put(stats.evicted)

    def finished(self, index: TierIndex | None) -> None:
        self._finished += 1
        if index is not None:
            self.show(index)
        if self._log_every_requests and self._finished % self._log_every_requests == 0:
            self._tell(index)

    def _failed(self, what: str, blocks: int, error: str) -> None:
        self._errors += 1
        flight.note(flight.TRANSFER_FAILED, blocks, text=what)
        self._errors_told += 1
        counters.offload_errors.add()
        if self._errors_told <= ERRORS_TOLD_MAX:
            last = "; further ones are counted" if self._errors_told == ERRORS_TOLD_MAX else ""
            log.error("a %s of %d blocks failed: %s%s", what, blocks, error, last)

    def _tell(self, index: TierIndex | None) -> None:
        shares = [100 * part / max(self._prompt, 1) for part in (self._device, self._host)]
        free = f"{index.stats().free} of {index.slots} host blocks free" if index is not None else "no host tier yet"
        log.info(
            "%d requests: of their prompts %.1f%% were on the device, %.1f%% came from the host tier; "
            "%d blocks stored, %d loaded, %d transfers failed; %s",
            self._log_every_requests, *shares, self._stored, self._loaded, self._errors, free,
        )  # fmt: skip
        self._prompt = self._device = self._host = self._stored = self._loaded = self._errors = 0
