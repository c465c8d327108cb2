"""The curve behind "how much host memory do I need?": the same workload once for each host size."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from trtllm_kvfix.replay.engine import Replay, Workload
from trtllm_kvfix.replay.outcome import CacheShape, Outcome


def sweep(
    workload: Workload, shape: CacheShape, host_sizes: Sequence[int], on_finished: Callable[[int], object]
) -> Iterator[Outcome]:
    """Outcomes in ascending order of host size; ends after the first that was interrupted."""
    done = 0
    for blocks_host in sorted(set(host_sizes)):
        replay = Replay(workload, shape.model_copy(update={"blocks_host": blocks_host}))
        outcome = replay.run(partial(_shifted, on_finished, done))
        yield outcome
        if outcome.partial:
            return
        done += len(workload.requests)


def _shifted(on_finished: Callable[[int], object], before: int, finished: int) -> None:
    on_finished(before + finished)
