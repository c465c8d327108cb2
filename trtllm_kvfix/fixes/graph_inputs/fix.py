"""Host tables of LoRA for experts are written once the last CUDA graph that reads them has run (H9).

A graph holds the addresses of pinned tables and reads them at every replay. Upstream's fence and ours lie in front
of the replay, so they cover what is copied before it and nothing that it copies itself. This fix records an event
behind the replay, and the next step waits for it before it writes the tables. Their addresses are in the graph, so they
cannot be staged elsewhere.

Only tables that a graph reads make a step wait: without LoRA on experts, no event is recorded.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.fixes.waits import finish, wait_for
from trtllm_kvfix.hazards.h9_graph_inputs import device as h9
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse as fuses
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import GRAPH_RUNNER, LORA_PARAMS, Upstream
from trtllm_kvfix.staging import stream_marks

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


class Reads:
    """The enqueued work that reads one set of host tables, and the wait until it has run.

    An executor's thread uses it alone; what its engine enqueued in another, while it was built, is awaited as well.

    If our own code fails, the step waits for the whole stream, which is slower and as safe.
    """

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self._marks = stream_marks()
        self._is_tracked = True  # False: something may be pending that has no mark

    def mark(self) -> None:
        """Everything on this thread's stream so far may read the tables."""
        if self._fuse.blown:
            return
        try:
            self._marks.record()
        except Exception as error:
            self._fuse.fault(error)
            self.lose_track()

    def lose_track(self) -> None:
        self._is_tracked = False

    def wait(self) -> None:
        """The tables may be written when this returns."""
        if self._is_tracked and not self._fuse.blown:
            try:
                wait_for((self._marks,), counters.replay_waits, counters.replay_wait_seconds)
            except Exception as error:
                self._fuse.fault(error)
            else:
                self._fuse.in_a_row = 0
                return
        finish()
        self._is_tracked = True


class ObservedReads(Reads):
    """Does not wait, and counts the writes that came while a graph had yet to read the tables."""

    def wait(self) -> None:
        self._fuse.observe(lambda: not self._marks.done())


ID = "graph-inputs"
HANDED_OUT = "_moe_slot_cache"  # where upstream keeps what `get_moe_slot_inputs` has made


class ReplayFence:
    """Tables are identified by the object that owns them, so that engines do not wait for each other."""

    def __init__(self, kind: type[Reads] = Reads) -> None:
        self._kind = kind
        # By the owner. Engines have threads: an entry is set, taken and removed in one step, and so are all listed.
        self._reads: dict[ref[Any], Reads] = {}

    def handing_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `CudaGraphLoraParams.get_moe_slot_inputs`: from now on, a graph may have the tables' addresses.

        The method writes, too, and does not wait, because a capture forbids it. What it writes is there already, unless
        the tables are new; then nothing reads them yet.
        """

        def get_moe_slot_inputs(params: Any, *args: Any, **kwargs: Any) -> Any:
            tables = original(params, *args, **kwargs)
            if tables is not None:
                self._follow(params)
            return tables

        return get_moe_slot_inputs

    def replaying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `CUDAGraphRunner.replay`, on the stream that the graph is enqueued on."""

        def replay(runner: Any, key: Any, current_inputs: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(runner, key, current_inputs, *args, **kwargs)
            finally:
                self._enqueued(current_inputs)

        return replay

    def capturing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `CUDAGraphRunner.capture`: before it captures, it runs the model, which reads as a replay does."""

        def capture(runner: Any, key: Any, forward_fn: Any, initial_inputs: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(runner, key, forward_fn, initial_inputs, *args, **kwargs)
            finally:
                self._enqueued(initial_inputs)

        return capture

    def writing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For the methods of `CudaGraphLoraParams` that fill its host tables in place."""

        def write(params: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                reads = self._reads_of(params)
            except Exception as error:
                fuses.of(ID).fault(error)
                finish()
            else:
                if reads is not None:
                    reads.wait()
            return original(params, *args, **kwargs)

        return write

    def _reads_of(self, params: Any) -> Reads | None:
        """The reads of these tables; None if no graph has them. Tables that a graph got before this fence was installed
        are found as well."""
        reads = self._reads.get(ref(params))
        if reads is None and getattr(params, HANDED_OUT, None):
            reads = self._follow(params)
            reads.lose_track()
        return reads

    def _follow(self, params: Any) -> Reads:
        return self._reads.setdefault(ref(params, self._forget), self._kind(fuses.of(ID)))

    def _forget(self, owner: "ref[Any]") -> None:
        self._reads.pop(owner, None)

    def _enqueued(self, inputs: Any) -> None:
        """Upstream's call has returned, or raised when a part of its work was enqueued already."""
        try:
            lora_params = inputs.get("lora_params")  # None where the step has no LoRA
            params = lora_params.get("cuda_graph_params") if lora_params else None
            reads = None if params is None else self._reads_of(params)
        except Exception as error:
            fuses.of(ID).fault(error)
            for each in [*self._reads.values()]:  # their owner is not known
                each.lose_track()
            return
        if reads is not None:
            reads.mark()


# ---- when it is needed, and what it replaces ----

TABLES = "CudaGraphLoraParams"
HAND_OUT = f"{TABLES}.get_moe_slot_inputs"
ASSIGN, POINT = f"{TABLES}.update_sorted_indices", f"{TABLES}.update_weight_pointers"
REPLAY, CAPTURE = "CUDAGraphRunner.replay", "CUDAGraphRunner.capture"

# Arguments that upstream passes behind `self`: so many by their places, and these by name.
CALLS: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    (LORA_PARAMS, HAND_OUT, 2, ()),
    (LORA_PARAMS, ASSIGN, 1, ("tokens_per_seq",)),
    (LORA_PARAMS, POINT, 2, ()),
    (GRAPH_RUNNER, REPLAY, 1, ("current_inputs",)),
    (GRAPH_RUNNER, CAPTURE, 2, ("initial_inputs", "enable_spec_decode", "postprocess_fn")),
)


def probe(up: Upstream) -> Answer:
    if not up.has(LORA_PARAMS, HAND_OUT):
        return absent("no CUDA graph reads host tables of LoRA")
    if not getattr(up.attribute(LORA_PARAMS, TABLES), "__weakrefoffset__", 0):
        return unknown(f"{TABLES} takes no weak references, so its tables cannot be followed")
    for module, path, places, names in CALLS:
        function = up.attribute(module, path)
        if function is None:
            return unknown(f"there is no {path}")
        if not takes(up, function, SELF, *[SELF] * places, **dict.fromkeys(names, SELF)):
            return unknown(f"{path} cannot be called as upstream is known to call it")
    return needed(
        "host tables that a CUDA graph reads are rewritten while its replay may be pending",
        only_with="LoRA on routed experts",
    )


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _around(ReplayFence())


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _around(ReplayFence(ObservedReads))


def _around(fence: ReplayFence) -> Sequence[Replacement]:
    return [
        Replacement(Seam(LORA_PARAMS, HAND_OUT), fence.handing_out),
        Replacement(Seam(LORA_PARAMS, ASSIGN), fence.writing),
        Replacement(Seam(LORA_PARAMS, POINT), fence.writing),
        Replacement(Seam(GRAPH_RUNNER, REPLAY), fence.replaying),
        Replacement(Seam(GRAPH_RUNNER, CAPTURE), fence.capturing),
    ]


def self_test() -> None:
    h9.self_test(ReplayFence)


FIX = Fix(
    id=ID,
    hazard="H9",
    title="Tables that a CUDA graph reads are not rewritten before its last replay has ended",
    upstream=("T#14881",),
    triggers=(LORA_PARAMS, GRAPH_RUNNER),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="D F", absent="A B B2 C"),
)
