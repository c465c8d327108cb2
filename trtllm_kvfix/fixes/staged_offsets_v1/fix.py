"""V1 block offsets: upstream fills its persistent table as before, and this fix stages what it would copy from there
(H1).

Upstream's own code runs, with a destination of ours in the place of the device tensor. So whatever a version does about
beams, cross attention or widths stays as it is, and only these statements change their meaning:

    dst[pool, :num_seqs].copy_(table[pool, :num_seqs], non_blocking=True)  # reads the table when the stream gets there

If our own code fails, the same statement copies before it returns. A fix that stands down does the same.

For the choice `observe`, upstream copies as always, and one call in so many is looked at. It gets a destination of
ours, which runs every statement as it is and notes what it copied.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.staged_offsets_v1.destination import BlockingDestination, ObservedDestination, StagedDestination
from trtllm_kvfix.fixes.waits import finish
from trtllm_kvfix.hazards.h1_block_offsets_v1 import device as h1
from trtllm_kvfix.native import CopyingCall, PoolCopiesByTensor
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, HostBuffers, Replacement, Seam
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import ATTENTION_PLACES, RESOURCE_MANAGER, Upstream
from trtllm_kvfix.staging.read_back import OBSERVED_EVERY, ReadBack
from trtllm_kvfix.staging.stagers import Stagers

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


ID = "staged-offsets-v1"

TABLE = "host_kv_cache_block_offsets"


def staged_copy(stagers: Stagers, known: PoolCopiesByTensor, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets` of a manager that owns its table. What follows `dst_tensor` is upstream's business.

    Only this method fills the table, so the table is lent to the copy until the method is called again.
    """
    staged = _staged(stagers, known)

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return staged(original, self, dst_tensor, getattr(self, TABLE, None), args, kwargs)

    return copy_batch_block_offsets


def staged_prepare(stagers: Stagers, known: PoolCopiesByTensor, original: Callable[..., Any]) -> Callable[..., Any]:
    """`prepare` of attention metadata that owns the table and the copy, as upstream had it before the manager did."""
    staged = _staged(stagers, known)

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor, table = getattr(self, "kv_cache_block_offsets", None), getattr(self, TABLE, None)
        if tensor is None or table is None:
            return original(self, *args, **kwargs)

        def with_destination(self: Any, destination: Any, *args: Any, **kwargs: Any) -> Any:
            with _in_place_of(tensor, destination, self):
                return original(self, *args, **kwargs)

        return staged(with_destination, self, tensor, table, args, kwargs)

    return prepare


@contextmanager
def _in_place_of(tensor: Any, destination: Any, metadata: Any) -> Iterator[None]:
    """A `prepare` that puts another tensor there meanwhile means it."""
    metadata.kv_cache_block_offsets = destination
    try:
        yield
    finally:
        if metadata.kv_cache_block_offsets is destination:
            metadata.kv_cache_block_offsets = tensor


def _staged(stagers: Stagers, known: PoolCopiesByTensor) -> CopyingCall:
    """Calls with a destination of ours in the place of the tensor; where ours fails, every copy waits."""
    tried = fuse.of(ID)

    def blocking(raise_failure: Callable[[], None] | None, tensor: Any, table: Any) -> BlockingDestination:
        if raise_failure is not None:
            try:
                raise_failure()
            except Exception as error:
                tried.fault(error)
        _take_back(stagers, table)
        return BlockingDestination(tensor)

    return CopyingCall(known, tried, blocking=blocking, finish=_finish_call, finish_every=stagers.read_back is not None)


def _finish_call(destination: StagedDestination) -> None:
    """Upstream's method has returned: ship what it left, and perhaps look at what has been shipped."""
    if destination.has_taken:
        if not destination.failed:
            try:
                destination.flush()
            except Exception as error:
                destination.tried.fault(error)
                destination.fail()
        destination.copy_rest()
    destination.read_back()


def _take_back(stagers: Stagers, table: Any) -> None:
    """The table is about to be filled without us, so no copy may still read what an earlier call has lent. A kernel on
    the stream of that call follows each such copy."""
    try:
        stagers.settle(table)
    except Exception:
        finish()


class StagedOffsetsV1:
    """The replacements, sharing their stagers."""

    def __init__(self, *, mode: str = "auto", slots: int = 3, read_back_every: int = 0) -> None:
        read_back = ReadBack(ID, read_back_every) if read_back_every else None
        stagers, tried = Stagers(mode=mode, slots=slots, read_back=read_back), fuse.of(ID)

        def known(*, lends: bool) -> PoolCopiesByTensor:
            return PoolCopiesByTensor(
                lambda tensor, table: StagedDestination(tensor, table, stagers, tried, lends=lends)
            )

        self.copy_batch_block_offsets = partial(staged_copy, stagers, known(lends=True))
        self.prepare = partial(staged_prepare, stagers, known(lends=False))


def observed_copy(read_back: ReadBack, original: Callable[..., Any]) -> Callable[..., Any]:
    """For `copy_batch_block_offsets` of a manager that owns its table."""

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen = read_back.guarded(lambda: ObservedDestination(dst_tensor, self.host_kv_cache_block_offsets))
        if seen is None:
            return original(self, dst_tensor, *args, **kwargs)
        result = original(self, seen, *args, **kwargs)
        read_back.look(seen.shipment)
        return result

    return copy_batch_block_offsets


def observed_prepare(read_back: ReadBack, original: Callable[..., Any]) -> Callable[..., Any]:
    """For `prepare` of attention metadata that owns the table and the copy."""

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor, table = getattr(self, "kv_cache_block_offsets", None), getattr(self, TABLE, None)
        if tensor is None or table is None:
            return original(self, *args, **kwargs)
        seen = read_back.guarded(lambda: ObservedDestination(tensor, table))
        if seen is None:
            return original(self, *args, **kwargs)
        with _in_place_of(tensor, seen, self):
            result = original(self, *args, **kwargs)
        read_back.look(seen.shipment)
        return result

    return prepare


class ObservedOffsetsV1:
    """The replacements, sharing what they have read back."""

    def __init__(self, read_back: ReadBack) -> None:
        self.copy_batch_block_offsets = partial(observed_copy, read_back)
        self.prepare = partial(observed_prepare, read_back)


# ---- when it is needed, and what it replaces ----

Make = Callable[[Any], Any]

MANAGER_COPY = "KVCacheManager.copy_batch_block_offsets"
METADATA_PREPARE = "TrtllmAttentionMetadata.prepare"
KNOWN_PARAMETERS = ("self", "dst_tensor", "request_ids", "beam_width", "num_context", "num_seqs")


def probe(up: Upstream) -> Answer:
    if not up.has(RESOURCE_MANAGER, "KVCacheManager"):
        return absent("there is no V1 KV-cache manager")
    if up.has(RESOURCE_MANAGER, "KVCacheManager._stage_block_offsets_for_copy"):
        return fixed("the manager ships from a fresh pinned copy (T#15546)")
    copy = up.attribute(RESOURCE_MANAGER, MANAGER_COPY)
    if copy is None:
        return _probe_metadata(up)
    parameters = up.parameters(copy)
    if parameters[: len(KNOWN_PARAMETERS)] != KNOWN_PARAMETERS:
        return unknown(f"copy_batch_block_offsets takes {parameters}, expected {KNOWN_PARAMETERS}")
    if not takes(up, copy, *[SELF] * 6) or not takes(up, copy, *[SELF] * 4, num_context=SELF, num_seqs=SELF):
        return unknown("copy_batch_block_offsets cannot be called as attention metadata and AutoDeploy call it")
    return _judged(up.source(copy), "the manager")


def _probe_metadata(up: Upstream) -> Answer:
    """Before the manager had the method, attention metadata filled and shipped the table."""
    prepare = up.attribute(up.attention_module, METADATA_PREPARE)
    if prepare is None:
        return unknown("neither the manager nor attention metadata is known to ship block offsets")
    if not takes(up, prepare, SELF):
        return unknown(f"{METADATA_PREPARE} cannot be called as the engine calls it, with no argument")
    return _judged(up.source(prepare), "attention metadata")


def _judged(source: str | None, who: str) -> Answer:
    if source is None:
        return unknown(f"the source of {who} that ships block offsets cannot be read")
    if "host_kv_cache_block_offsets" not in source or ".copy_(" not in source or "non_blocking=True" not in source:
        return unknown(f"{who} does not ship block offsets in a way that is known")
    return needed(f"{who} ships from its live table, which the next iteration refills")


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    staged = StagedOffsetsV1(
        mode=settings.staging_mode, slots=settings.staging_slots, read_back_every=settings.read_back_every
    )
    return _in_place(up, staged.copy_batch_block_offsets, staged.prepare)


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    observed = ObservedOffsetsV1(ReadBack(ID, settings.read_back_every or OBSERVED_EVERY))
    return _in_place(up, observed.copy_batch_block_offsets, observed.prepare)


def _in_place(up: Upstream, copy: Make, prepare: Make) -> Sequence[Replacement]:
    """Replaces the manager's method where it has one, else attention metadata's."""
    if up.has(RESOURCE_MANAGER, MANAGER_COPY):
        return [Replacement(Seam(RESOURCE_MANAGER, MANAGER_COPY), copy)]
    attention = up.attention_module
    if attention is None:
        raise LookupError("no attention module is imported")
    return [Replacement(Seam(attention.__name__, METADATA_PREPARE), prepare)]


def self_test() -> None:
    h1.self_test(StagedOffsetsV1().copy_batch_block_offsets)


FIX = Fix(
    id=ID,
    hazard="H1",
    title="Block offsets of the V1 manager are shipped from a snapshot, not from the live table",
    upstream=("T#15546",),
    only_for="V1",
    triggers=(RESOURCE_MANAGER, *ATTENTION_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="A B B2 C", fixed="D F"),
    keeps_safe=(HostBuffers(r"^host_kv_cache_block_offsets$", r"resource_manager|trtllm"),),
)
