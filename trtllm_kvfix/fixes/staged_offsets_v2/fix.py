"""V2 block offsets: the kernel reads only what is ours, never the live table or the shared copy index (H2).

If the cache writes into a row later, in the same iteration or because the row has a new owner, that does not reach an
earlier call. The rows of the batch are read out of the live table during the call. Copies get snapshots of rows, copy
index and scratch ranges.

If our own code fails, upstream's kernel is launched as the caller asked, and the call returns when it has run. A fix
that stands down does the same.

For comparison with the offsets that arrive, those that a launch should write are computed here, too.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from trtllm_kvfix.fixes.probe_answers import absent, fixed, in_variants, needed, unknown
from trtllm_kvfix.fixes.staged_offsets_v2.copy_filter import RECORD, CopyFilter
from trtllm_kvfix.fixes.waits import finish
from trtllm_kvfix.hazards.h2_block_offsets_v2 import device as h2
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.native import OffsetLaunch, OffsetStager, copy_pages
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, HostBuffers, Replacement, Seam
from trtllm_kvfix.overlay.seam import holders
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import (
    DEEPSEEK_V4,
    RESOURCE_MANAGER,
    STEP_COPIES,
    STEP_PROLOGUE_TRIM,
    V2_PLACES,
    Upstream,
)
from trtllm_kvfix.staging import MovableMark, current_place, in_use
from trtllm_kvfix.staging.read_back import BAD_PAGE, OBSERVED_EVERY, ReadBack, Shipment
from trtllm_kvfix.staging.stagers import Stagers, is_too_wide, memory_of, v1, v2

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


class Lot(NamedTuple):
    rows: Any
    order: Any  # the copy index into them


def private_lot(table: Any, copy_index: Any) -> Lot:
    pools, _, planes, blocks = table.shape
    rows = fresh_pinned(table, (pools, copy_index.shape[0], planes, blocks))
    copy_pages(table, copy_index, rows)
    return Lot(rows, counting_from_0(copy_index))


def counting_from_0(copy_index: Any) -> Any:
    """The copy index into rows that lie in their order."""
    order = fresh_pinned(copy_index)
    order.numpy()[...] = np.arange(copy_index.shape[0])
    return order


def keep_until_read(lot: Lot, stream: int) -> None:
    """Its kernel has been launched on the stream."""
    mark = MovableMark(current_place().device, stream)
    mark.record()
    in_use.keep(mark, lot)


def fresh_pinned(tensor: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Memory of the tensor's kind and, unless told otherwise, its shape. torch may have to pin it, which would end
    another thread's capture of a graph."""
    shape = tuple(tensor.shape) if shape is None else shape
    device = current_place().device
    return device.outside_captures(lambda: tensor.new_empty(shape, pin_memory=tensor.is_pinned()))


ID = "staged-offsets-v2"
TABLE = "host_kv_cache_block_offsets"
PER_LAYER = "_copy_batch_block_offsets_per_layer"
# Written in place at every call of the per-layer path, and read by asynchronous copies.
SCRATCH = ("_host_scratch_begs_staging", "_host_scratch_ends_staging", "_host_scratch_slots_staging")
OF_LAYERS = frozenset((TABLE, *SCRATCH))

# The outcome of a launch: None if it has been shipped, else the arguments of upstream's kernel, in their order, and
# the memory of ours among them.
Staged = tuple[tuple[Any, ...], Lot | None] | None


def forgetting_copy(copy_filter: CopyFilter, original: Callable[..., Any]) -> Callable[..., Any]:
    """`copy_batch_block_offsets` of the manager, which may launch nothing, where it has recorded the same rows for the
    same tensor."""
    tried = fuse.of(ID)

    def copy_batch_block_offsets(self: Any, dst_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            copy_filter.forget(dst_tensor)
        except Exception as error:
            tried.fault(error)
        return original(self, dst_tensor, *args, **kwargs)

    return copy_batch_block_offsets


class StagedLaunch(OffsetLaunch):
    """`copy_batch_block_offsets_to_device` with six arguments: scale and V offset differ by pool.

    What a stager can ship is shipped natively. Everything else comes to `otherwise`.
    """

    def __init__(self, stagers: Stagers, original: Callable[..., Any]) -> None:
        def stager_of(input: Any, index_scales: Any, kv_offset: Any) -> OffsetStager | None:
            if is_on_device(input) or is_too_wide(input):
                return None
            return stagers.of_lasting(v2, input, index_scales, kv_offset)

        self._tried = fuse.of(ID)
        self._original = original
        super().__init__(stager_of, self._tried)

    def otherwise(self, raise_failure: Callable[[], None] | None, *args: Any) -> Any:
        def stage(input: Any, output: Any, copy_index: Any, *rest: Any) -> Staged:
            if raise_failure is not None:
                raise_failure()
            if is_on_device(input):  # already a snapshot
                return (input, output, copy_index, *rest), None
            lot = private_lot(input, copy_index)
            return (lot.rows, output, lot.order, *rest), lot

        result = _launched(self._original, self._tried, stage, args, {})
        _, output, *_ = args
        if hasattr(output, "data_ptr"):
            self.note_launch(output.data_ptr())
        return result

    def unknown(self, *args: Any, **kwargs: Any) -> Any:
        """No launch of upstream's has such arguments. If one has them all the same, they may not be written before it
        has run."""
        result = self._original(*args, **kwargs)
        finish(_stream(args, kwargs))
        return result


def staged_launch_unscaled(stagers: Stagers, original: Callable[..., Any]) -> Callable[..., Any]:
    """The older kernel with five arguments: V is K, or the page behind it; a bad page stays one in both planes."""
    # Rows with both planes, for each table as long as its stager lives: another engine may launch from a table of the
    # same shape, in its own thread, before these have been read.
    scratch: WeakKeyDictionary[OffsetStager, Any] = WeakKeyDictionary()

    def stage(input: Any, output: Any, copy_index: Any, copy_v_idx: bool, stream: int) -> Staged:
        if is_on_device(input):
            return (input, output, copy_index, copy_v_idx, stream), None
        if is_too_wide(input):
            lot = private_lot(input, copy_index)
            return (lot.rows, output, lot.order, copy_v_idx, stream), lot
        table, index = input.numpy(), copy_index.numpy()
        stager = stagers.of(input, v1)
        # Ordinary memory: the stager has taken what it needs when `ship` returns.
        both = scratch.get(stager)
        if both is None:
            both = scratch[stager] = np.empty_like(table)
        keys, values = both[:, : len(index), 0], both[:, : len(index), 1]
        keys[...] = table[:, index, 0]
        values[...] = keys if copy_v_idx else keys + (keys != BAD_PAGE)
        stager.ship(memory_of(output), both, range(len(index)), stream=int(stream))
        flight.note(flight.SHIPPED, index.shape[0], both.shape[0])
        return None

    return _launching(original, stage)


def _launching(original: Callable[..., Any], stage: Callable[..., Staged]) -> Callable[..., Any]:
    tried = fuse.of(ID)

    def copy_batch_block_offsets_to_device(*args: Any, **kwargs: Any) -> Any:
        return _launched(original, tried, stage, args, kwargs)

    return copy_batch_block_offsets_to_device


def _launched(
    original: Callable[..., Any],
    tried: fuse.Fuse,
    stage: Callable[..., Staged],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    staged, failed = None, tried.blown
    if not failed:
        try:
            staged = stage(*args, **kwargs)
        except Exception as error:
            tried.fault(error)
            failed = True
    if failed:
        result = original(*args, **kwargs)
        finish(_stream(args, kwargs))
        return result
    if staged is None:
        tried.in_a_row = 0
        return None
    arguments, lot = staged
    result = original(*arguments)
    if lot is not None:
        try:
            keep_until_read(lot, int(arguments[-1]))
        except Exception as error:
            tried.fault(error)
            finish(int(arguments[-1]))
            return result
    tried.in_a_row = 0
    return result


def _stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The stream of a launch: the last argument."""
    return int(kwargs["stream"] if "stream" in kwargs else args[-1])


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and it returns when its copies have run."""

    def waiting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        finish()
        return result

    return waiting


def private_per_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    """The sliding-window path ships the whole table, the copy index and scratch ranges by asynchronous copies.

    During the call each of them is a fresh pinned tensor, which the host allocator does not reuse until the copy out of
    it is done.
    """
    tried, waiting = fuse.of(ID), _waiting(original)

    def _copy_batch_block_offsets_per_layer(
        self: Any, dst_tensor: Any, request_ids: Any, copy_idx: Any, *args: Any, **kwargs: Any
    ) -> Any:
        fresh = None
        if not tried.blown:
            try:
                live = _live(self, OF_LAYERS)
                fresh, rows = _private(live, copy_idx)
            except Exception as error:
                tried.fault(error)
        if fresh is None:
            return waiting(self, dst_tensor, request_ids, copy_idx, *args, **kwargs)
        tried.in_a_row = 0
        vars(self).update(fresh)
        try:
            return original(self, dst_tensor, request_ids, rows, *args, **kwargs)
        finally:
            vars(self).update(live)

    return _copy_batch_block_offsets_per_layer


def _live(manager: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: vars(manager)[name] for name in names if name in vars(manager)}


def _private(live: dict[str, Any], copy_idx: Any) -> tuple[dict[str, Any], Any]:
    """What takes the place of the manager's tensors for a call, and the copy index into a table that holds the batch's
    rows in order."""
    fresh = {name: _fresh_copy(tensor) for name, tensor in live.items() if name != TABLE}
    fresh[TABLE] = fresh_pinned(live[TABLE])
    copy_pages(live[TABLE], copy_idx, fresh[TABLE])
    return fresh, counting_from_0(copy_idx)


# DeepSeek-V4's manager ships in methods of its own, by copies: in the newest builds out of the live table, with the
# shared copy index and the scratch ranges; in all builds out of buffers that the next call fills again.
OWN_MANAGER = "DeepseekV4CacheManager"
OWN_COPIES = (
    "compute_sliding_block_tables",
    "copy_batch_block_offsets",
    "copy_batch_compress_block_tables",
    "copy_batch_sliding_block_tables",
)
# Some builds have a buffer for all layers, sequences and blocks, of hundreds of MiB. The call waits for those.
FRESH_BYTES_MAX = 64 << 20


def own_copies(up: Upstream) -> Iterator[Replacement]:
    """Each with fresh memory, during the call, for what it names of the manager's pinned memory."""
    manager = up.attribute(DEEPSEEK_V4, OWN_MANAGER)
    for name in OWN_COPIES:
        method = vars(manager).get(name) if manager is not None else None
        if method is not None and (make := _with_fresh_memory(up.source(method), name)) is not None:
            yield Replacement(Seam(DEEPSEEK_V4, f"{OWN_MANAGER}.{name}"), make)


def _with_fresh_memory(source: str | None, method: str) -> Callable[[Any], Any] | None:
    """None if it copies from the device alone."""
    if source is None or f"def {method}(" not in source:
        return _waiting
    names = _host_memory_named(source)
    if TABLE in names:
        return partial(private_tables, names | OF_LAYERS)
    return partial(private_buffers, names) if names else None


def _host_memory_named(source: str) -> frozenset[str]:
    return frozenset(re.findall(rf"\bself\.({TABLE}|_host_\w+_staging)\b", source))


def private_buffers(names: Iterable[str], original: Callable[..., Any]) -> Callable[..., Any]:
    """The method writes into these buffers, tensors or dictionaries of tensors, and enqueues copies out of them. What
    it does not write is copied as well, and stays as upstream's constructor has left it."""
    tried, waiting = fuse.of(ID), _waiting(original)

    def own_copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        fresh = None
        if not tried.blown:
            try:
                live = _live(self, names)
                if sum(map(_nbytes, live.values())) <= FRESH_BYTES_MAX:
                    fresh = {name: _fresh_copy(each) for name, each in live.items()}
            except Exception as error:
                tried.fault(error)
        if fresh is None:
            return waiting(self, *args, **kwargs)
        tried.in_a_row = 0
        vars(self).update(fresh)
        try:
            return original(self, *args, **kwargs)
        finally:
            vars(self).update(live)

    return own_copy


def _nbytes(buffers: Any) -> int:
    if isinstance(buffers, dict):
        return sum(map(_nbytes, buffers.values()))
    return int(buffers.numel() * buffers.element_size())


def _fresh_copy(buffers: Any) -> Any:
    if isinstance(buffers, dict):
        return {key: _fresh_copy(each) for key, each in buffers.items()}
    fresh = fresh_pinned(buffers)
    fresh.copy_(buffers)
    return fresh


def private_tables(names: Iterable[str], original: Callable[..., Any]) -> Callable[..., Any]:
    """The method asks for the copy index, and enqueues copies of it and of these: of the live table, of scratch ranges,
    and of other buffers that it writes into behind the question."""
    tried = fuse.of(ID)

    def own_copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        mapper = None if tried.blown else vars(self).get("index_mapper")
        asked = _PrivateRows(self, names, mapper)
        if mapper is not None:
            self.index_mapper = asked
        try:
            return original(self, *args, **kwargs)
        finally:
            asked.end()

    return own_copy


class _PrivateRows:
    """Upstream's index mapper during a call. When it is asked for the copy index, the manager gets private rows."""

    def __init__(self, manager: Any, names: Iterable[str], mapper: Any) -> None:
        self._manager, self._names, self._mapper = manager, names, mapper
        self._tables: dict[str, Any] = {}  # the manager's own, once it has others

    def end(self) -> None:
        """The call is over: the manager has what it had. Where it got no private rows, its copies have run."""
        if self._mapper is not None:
            vars(self._manager).update(self._tables, index_mapper=self._mapper)
        if not self._tables:
            finish()

    def get_copy_index(self, *args: Any, **kwargs: Any) -> Any:
        index = self._mapper.get_copy_index(*args, **kwargs)
        tried = fuse.of(ID)
        try:
            live = self._tables or _live(self._manager, self._names)  # of the manager, however often it asks
            fresh, rows = _private(live, index)
        except Exception as error:
            tried.fault(error)
            return index
        tried.in_a_row = 0
        self._tables = live
        vars(self._manager).update(fresh)
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapper, name)


def is_on_device(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))


def not_covered(original: Callable[..., Any]) -> Callable[..., Any]:
    """`StepInputStage.block_copy` notes the addresses of the live table and copy index for a kernel that `commit`
    launches. Its callers know the answer "not covered": they then make the launch that is fixed above."""
    del original

    def block_copy(*_args: Any, **_kwargs: Any) -> bool:
        return False

    return block_copy


class StagedOffsetsV2:
    """The replacements, sharing their stagers."""

    def __init__(self, *, mode: str = "auto", slots: int = 3) -> None:
        stagers = Stagers(mode=mode, slots=slots)
        self.copy_filter = CopyFilter(fuse.of(ID))
        self.copy = partial(forgetting_copy, self.copy_filter)
        self.launch = self.copy_filter.launching(partial(StagedLaunch, stagers))
        self.launch_unscaled = partial(staged_launch_unscaled, stagers)
        self.per_layer = private_per_layer


Meaning = Callable[..., Shipment | None]


def looked_at(read_back: ReadBack, meaning: Meaning, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Make the launch and read back what it wrote. The caller must not write its arguments meanwhile."""

    def copy_batch_block_offsets_to_device(*args: Any, **kwargs: Any) -> Any:
        result = launch(*args, **kwargs)
        if read_back.due():
            read_back.look(partial(meaning, *args, **kwargs))
        return result

    return copy_batch_block_offsets_to_device


def meant_scaled(
    input: Any, output: Any, copy_index: Any, index_scales: Any, kv_offset: Any, stream: int
) -> Shipment | None:
    """With six arguments: scale and V offset differ by pool."""
    return _rows(input, output, copy_index, stream, np.array(index_scales.tolist()), np.array(kv_offset.tolist()))


def meant_unscaled(input: Any, output: Any, copy_index: Any, copy_v_idx: bool, stream: int) -> Shipment | None:
    """With five: V is K, or the page behind it."""
    return _rows(input, output, copy_index, stream, np.array([1]), np.array([0 if copy_v_idx else 1]))


def _rows(input: Any, output: Any, copy_index: Any, stream: int, scales: Any, v_offsets: Any) -> Shipment | None:
    if getattr(input, "is_cuda", False):
        return None  # a snapshot on the device, which only the device can read
    pages = input.numpy()[:, copy_index.numpy(), 0]
    meant = np.full((*pages.shape[:2], 2, pages.shape[2]), BAD_PAGE, np.int32)
    keys = pages * scales[:, None, None]
    good = pages != BAD_PAGE
    meant[:, :, 0][good] = keys[good]
    meant[:, :, 1][good] = (keys + v_offsets[:, None, None])[good]
    return Shipment(memory_of(output), meant, int(stream))


# ---- when it is needed, and what it replaces ----

GATHER = "gather_k_block_offsets"
LAUNCH = "copy_batch_block_offsets_to_device"
COPY = "KVCacheManagerV2.copy_batch_block_offsets"
BLOCK_COPY = "StepInputStage.block_copy"
SCALED = ("input", "output", "copy_index", "index_scales", "kv_offset", "stream")
UNSCALED = ("input", "output", "copy_index", "copy_v_idx", "stream")


def probe(up: Upstream) -> Answer:
    module = up.v2_module
    if module is None or not up.has(module, "KVCacheManagerV2"):
        return absent("there is no V2 KV-cache manager")
    copy, launch = up.attribute(module, COPY), up.attribute(module, LAUNCH)
    if copy is None or launch is None:
        return unknown(f"{module.__name__} does not have both {COPY} and {LAUNCH}")
    if not takes(up, copy, *[SELF] * 6):
        return unknown(f"{COPY} cannot be called as attention metadata calls it")
    per_layer = up.attribute(module, f"KVCacheManagerV2.{PER_LAYER}")
    if per_layer is not None and not takes(up, per_layer, *[SELF] * 6):
        return unknown(f"{PER_LAYER} cannot be called as {COPY} is known to call it")
    return _judged(up.source(copy), up.parameters(launch))


def _judged(source: str | None, parameters: tuple[str, ...]) -> Answer:
    if source is None:
        return unknown(f"the source of {COPY} cannot be read")
    if _launches_what_it_gathered(source):
        return fixed("the manager gathers the rows of a batch and launches from these")
    if parameters not in (SCALED, UNSCALED):
        return unknown(f"{LAUNCH} takes {parameters}, expected {SCALED} or {UNSCALED}")
    if LAUNCH not in source or "get_copy_index" not in source or (GATHER in source and not _launches_live_rows(source)):
        return unknown(f"{COPY} does not ship in a way that is known")
    return needed(f"the kernel ({len(parameters)} arguments) reads the live table and the shared copy index")


def _launches_what_it_gathered(source: str) -> bool:
    """A manager may also gather rows only to compare them with those of its last launch."""
    gathered, launched = _argument(source, GATHER, 1, "destination"), _argument(source, LAUNCH, 0, "input")
    return bool(gathered) and gathered == launched


def _launches_live_rows(source: str) -> bool:
    return _argument(source, LAUNCH, 0, "input") == f"self.{TABLE}"


def _argument(source: str, function: str, position: int, name: str) -> str:
    """An argument of the first call of this function, as it is written."""
    for call in ast.walk(ast.parse(dedent(source))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == function:
            named = {each.arg: each.value for each in call.keywords}
            value = call.args[position] if position < len(call.args) else named.get(name)
            return "" if value is None else ast.unparse(value)
    return ""


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    module = up.v2_module
    if module is None:
        raise LookupError("no module of the V2 manager is imported")
    staged = StagedOffsetsV2(mode=settings.staging_mode, slots=settings.staging_slots)
    unscaled = up.parameters(up.attribute(module, LAUNCH)) == UNSCALED
    # The name in the manager's own module: upstream has bound it there, and others have their own.
    made = [Replacement(Seam(module.__name__, LAUNCH), staged.launch_unscaled if unscaled else staged.launch)]
    if settings.read_back_every:
        seam, launch = made[0].seam, made[0].make
        look = _looking(up, settings.read_back_every)
        made[0] = Replacement(seam, lambda original: look(launch(original)))
    if not unscaled:
        made.append(Replacement(Seam(module.__name__, COPY), staged.copy))
        if up.has(STEP_PROLOGUE_TRIM, RECORD):
            made.append(Replacement(Seam(STEP_PROLOGUE_TRIM, RECORD), staged.copy_filter.recording))
    if up.has(module, f"KVCacheManagerV2.{PER_LAYER}"):
        made.append(Replacement(Seam(module.__name__, f"KVCacheManagerV2.{PER_LAYER}"), staged.per_layer))
    return made


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:
    """Observers of upstream's kernel. Its other path, layer by layer, is not observed."""
    module = up.v2_module
    if module is None:
        raise LookupError("no module of the V2 manager is imported")
    return [Replacement(Seam(module.__name__, LAUNCH), _looking(up, settings.read_back_every or OBSERVED_EVERY))]


def _looking(up: Upstream, every: int) -> Callable[[Any], Any]:
    meaning = meant_unscaled if up.parameters(up.attribute(up.v2_module, LAUNCH)) == UNSCALED else meant_scaled
    return partial(looked_at, ReadBack(ID, every), meaning)


def late_replacements(up: Upstream) -> Sequence[Replacement]:
    """Managers of some models, and the binding's own module, hold the launch under names of their own: all of them get
    the same function, and later imports get it from the binding's module. Where a kernel of another kind reads the live
    table, its replacement answers "not covered". A manager that launches nothing and copies gets fresh memory to copy
    from."""
    launch = up.attribute(up.v2_module, LAUNCH)
    made = [
        Replacement(Seam(module, name), lambda _: launch)
        for module, name in holders(getattr(launch, "__kvfix_original__", launch))
    ]
    if up.has(STEP_COPIES, BLOCK_COPY):
        made.append(Replacement(Seam(STEP_COPIES, BLOCK_COPY), not_covered))
    return [*made, *own_copies(up)]


def self_test() -> None:
    h2.self_test(StagedOffsetsV2().launch)


FIX = Fix(
    id=ID,
    hazard="H2",
    title=f"Block offsets of the V2 manager: each call has rows and copy index of its own, {TABLE} is read at the call",
    upstream=("T#15607", "T#16088", "T#14128"),
    only_for="V2",
    triggers=(RESOURCE_MANAGER, *V2_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="B B2 C D F", absent="A"),
    late=(STEP_COPIES, DEEPSEEK_V4),
    late_replacements=late_replacements,
    keeps_safe=(
        HostBuffers(r"^_?host_(kv_cache_block_offsets|scratch_\w+_staging)$", r"v2"),
        HostBuffers(r"^_?host_(kv_cache_block_offsets|\w+_staging)$", r"/deepseek_v4/cache_manager"),
    ),
)
