"""Measures what the overlay costs an iteration, against upstream's racy original in the same run, on the stand-in.

offsets_cpu_us: the call that fills the table and ships block offsets, on an idle stream; between two calls every
request grows by a token. prepare_cpu_us: preparing a batch of generations, with the turns, the order and the budget
around it. fence_record_cpu_us, fence_wait_cpu_us: what the input-copy fence adds where inputs are prepared, and to the
scheduling of an iteration whose inputs have been read by then. Original and overlay take turns at going first. Ratios
are to the original. Arrived offsets are compared with the manager's own answer after each case.

The arm `driver_calls_alone` ships nothing right: in the place of the launch it makes the driver calls of an early copy
and nothing else, so that nothing that calls them can be faster.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from measure import RESULTS, Row, Summary, report
from overlay_case import Call, Case, alternate, cases, compared

from trtllm_kvfix import native
from trtllm_kvfix.fixes.batched_admission.fix import BatchedAdmission
from trtllm_kvfix.fixes.concurrent_pins.fix import Turns
from trtllm_kvfix.fixes.input_copy_fence.fix import InputFence
from trtllm_kvfix.fixes.staged_offsets_v1.fix import StagedOffsetsV1
from trtllm_kvfix.fixes.staged_offsets_v2.fix import StagedOffsetsV2
from trtllm_kvfix.fixes.token_budget.fix import BudgetKeeper
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Tag

SIZES = ((8, 64), (64, 256), (256, 256), (256, 1024))
QUICK = ((8, 64), (64, 256))
LAUNCH = "copy_batch_block_offsets_to_device"
PER_LAYER = "_copy_batch_block_offsets_per_layer"


def offsets(case: Case, rounds: int) -> Iterator[Row]:
    """The attributes of classes and modules are replaced as the fix does it, and put back."""
    kind: Any = type(case.manager)
    made: dict[Any, Any]
    if case.per_layer:
        made = {(kind, PER_LAYER): StagedOffsetsV2().per_layer}
    elif case.v2:
        staged = StagedOffsetsV2()
        made = {
            (sys.modules[kind.__module__], LAUNCH): staged.launch,
            (kind, "copy_batch_block_offsets"): staged.copy,
        }
    else:
        made = {(kind, "copy_batch_block_offsets"): StagedOffsetsV1().copy_batch_block_offsets}
    as_it_was = {seam: getattr(*seam) for seam in made}
    originals = as_it_was | {
        seam: KernelAlone(len(case.ids), case.blocks) for seam in made if seam[1] == LAUNCH and case.on_gpu
    }
    replaced = {seam: make(as_it_was[seam]) for seam, make in made.items()}

    def put(values: dict[Any, Any]) -> None:
        for (owner, name), value in values.items():
            setattr(owner, name, value)

    def with_attributes(values: dict[Any, Any]) -> Call:
        def switch_and_ship() -> None:
            put(values)
            case.ship()

        return switch_and_ship

    arms = {"racy_original": with_attributes(originals), "overlay": with_attributes(replaced)}
    if case.on_gpu and not case.per_layer:  # upstream's own copies are made in both arms
        arms["driver_calls_alone"] = with_attributes(bare_calls(case, originals))
    yield from compared(case, "offsets_cpu_us", arms, rounds, case.grow)
    with case.server.tensors.on(case.stream):
        arms["overlay"]()
        case.settle()
        case.check()
    put(as_it_was)


def bare_calls(case: Case, originals: dict[Any, Any]) -> dict[Any, Any]:
    """Upstream's method with an early copy's calls to the driver in the place of what it launches."""
    calls = EarlyCopyCalls(len(case.ids), case.blocks)
    if case.v2:
        return {seam: calls if seam[1] == LAUNCH else original for seam, original in originals.items()}
    (original,) = originals.values()
    return dict.fromkeys(originals, lambda manager, _destination, *rest: original(manager, calls, *rest))


class KernelAlone:
    """Upstream's launch: torch has no kernel that reads pinned rows. It reads memory of its own, which costs the CPU as
    much."""

    def __init__(self, rows: int, blocks: int) -> None:
        self._device = device = native.open_device("cuda")
        self._table, self._index = device.pinned([1, rows, 2, blocks], "int32"), device.pinned([rows], "int32")
        self._target = device.empty([1, rows, 2, blocks], "int32")
        self._rows, self._blocks = rows, blocks

    def __call__(self, *arguments: Any) -> None:
        self._device.gather_host_rows(
            self._target, self._table, self._index, self._rows, self._blocks, [1], [1], arguments[-1]
        )


class EarlyCopyCalls:
    """A launch, and also a tensor that every copy goes to."""

    def __init__(self, rows: int, blocks: int) -> None:
        self._device = device = native.open_device("cuda")
        self._copies, self._stream = device.create_stream(), device.create_stream()
        self._copied, self._gathered = device.create_event(), device.create_event()
        self._table, self._index = device.pinned([1, rows, 2, blocks], "int32"), device.pinned([rows], "int32")
        self._target = device.empty([1, rows, 2, blocks], "int32")
        self._nbytes, self._rows, self._blocks = rows * blocks * 4, rows, blocks

    def __call__(self, *_arguments: Any) -> None:
        device = self._device
        device.done(self._gathered)
        device.copy(self._target.address, self._table.address, self._nbytes, self._copies)
        device.record(self._copied, self._copies)
        device.make_wait(self._stream, self._copied)
        device.gather_host_rows(
            self._target, self._table, self._index, self._rows, self._blocks, [1], [1], self._stream
        )
        device.record(self._gathered, self._stream)

    def __getitem__(self, _index: Any) -> "EarlyCopyCalls":
        return self

    def copy_(self, _source: Any, non_blocking: bool = False) -> None:
        del non_blocking
        self()


def preparing(case: Case, rounds: int) -> Iterator[Row]:
    """Times the executor's resource manager, as it is and with everything that the overlay puts around it."""
    executor = case.server.executor
    resources, manager, bound = executor.resource_manager, type(case.manager), type(case.manager.impl)
    batch: Any = import_module("tensorrt_llm._torch.pyexecutor.scheduler").ScheduledRequests()
    batch.generation_requests = case.requests
    budget, order, turns = Fuse("token-budget"), Fuse("batched-admission"), Turns()
    keeper = BudgetKeeper(budget, Votings(lambda: Voting(budget, Tag.BUDGET)), lambda _impl: True)
    admission = BatchedAdmission(order, Votings(lambda: Voting(order, Tag.ADMISSION)))
    keeper.learning(lambda _executor: None)(executor)
    replaced = {
        (type(resources), "prepare_resources"): lambda original: keeper.fitting(admission.ordered(original)),
        (manager, "free_resources"): keeper.releasing,
        (bound, "add_token"): turns.guarded,
    }
    originals = {seam: getattr(*seam) for seam in replaced}
    made = {seam: make(originals[seam]) for seam, make in replaced.items()}

    def with_attributes(values: dict[Any, Any]) -> Call:
        def call() -> None:
            resources.prepare_resources(batch)

        def switch_and_call() -> None:
            for (owner, name), value in values.items():
                setattr(owner, name, value)
            call()

        return switch_and_call

    def prepared() -> None:
        """Takes back the token that preparing adds."""
        for request in case.requests:
            case.manager.impl.rewind_kv_cache(request.request_id, 1)

    case.grow()
    arms = {"racy_original": with_attributes(originals), "overlay": with_attributes(made)}
    yield from compared(case, "prepare_cpu_us", arms, rounds, prepared)
    with_attributes(originals)()


def fencing(case: Case, rounds: int) -> Iterator[Row]:
    fence = InputFence()
    record, wait = fence.recording(lambda _engine: None), fence.waiting(lambda _executor: None)

    arms: dict[str, tuple[Call, Call]] = {
        "fence_record_cpu_us": (partial(record, case), partial(wait, case)),
        "fence_wait_cpu_us": (partial(wait, case), partial(record, case)),
    }
    for metric, (arm, other) in arms.items():
        (taken,) = alternate(case, [arm], rounds, other)
        yield Row(case.name, case.blocks, "overlay", metric, Summary.of(taken))


def default_device() -> str:
    try:
        import torch  # noqa: PLC0415  where it is not, the simulated device serves
    except ImportError:
        return "cpu"
    return "torch" if torch.cuda.is_available() else "cpu"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--device", choices=("cpu", "cuda", "torch"), default=default_device())
    options = parser.parse_args()
    rounds = 20 if options.quick else options.rounds
    every: list[Row] = []
    for size in QUICK if options.quick else SIZES:
        for variant, v2, per_layer in (("C", False, False), ("C", True, False), ("D", True, True)):
            with cases(variant, options.device, *size, v2=v2, per_layer=per_layer) as case:
                every += offsets(case, rounds)
                if not v2:
                    every += [*preparing(case, rounds), *fencing(case, rounds)]
    report("overlay.csv", every, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
