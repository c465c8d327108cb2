"""What a rank of the host tier reports: its file for `trtllm-kvfix status`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtllm_kvfix import runtime_files
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters

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
    segment: str = ""  # the state of what this rank lends the store, if it lends any
    hits: list[dict[str, Any]] = field(default_factory=list)  # by class, where they are estimated

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

    def remote_is(self, text: str, segment: str = "") -> None:
        if (text, segment) != (self.remote, self.segment):
            self.remote, self.segment = text, segment
            self._write()

    def hits_are(self, hits: list[dict[str, Any]]) -> None:
        self.hits = hits
        self._write()

    def failed(self, errors: Sequence[str]) -> None:
        """Note that transfers failed on this rank. All ranks together decide what becomes of them."""
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
