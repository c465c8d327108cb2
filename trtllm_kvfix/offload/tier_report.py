"""Report of this rank's host tier for `trtllm-kvfix status`: a file beside the attestation of its process.

It is written when the tier is built, at every transfer that fails on this rank, and when the tier is given back. If it
cannot be written, because the folder is full or belongs to another user, the log says so, and serving continues.
"""

from dataclasses import asdict, dataclass
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
    """`folder` is None if no report is wanted: in tests, and in `verify`."""

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
        """The number of bytes that are registered with the device now."""
        self.pinned_bytes = count
        counters.offload_pinned_bytes.put(count)
        self._write()

    def remote_is(self, text: str) -> None:
        if text != self.remote:
            self.remote = text
            self._write()

    def failed(self, error: str) -> None:
        """A transfer failed on this rank. All ranks together decide what becomes of it."""
        self.transfers_failed += 1
        self.first_error = self.first_error or error
        counters.offload_rank_errors.add()
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
