"""A device tensor of another GPU than ours, or of none, fares as it does in upstream's own statement."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.executor.test_block_offsets_v2 import V2
from tests.fixes.applied import applied, standing_in
from tests.standin.serving import Server
from trtllm_kvfix.overlay import fuse

REFUSAL = "no access from this device"


class Elsewhere:
    """As torch's tensors describe themselves; both of upstream's ways to write refuse it."""

    dtype = "torch.int32"

    def __init__(self, shape: Sequence[int], index: int | None) -> None:
        self.shape = tuple(shape)
        self.is_cuda = index is not None
        self.device = SimpleNamespace(type="cpu" if index is None else "cuda", index=index)

    def data_ptr(self) -> int:
        return 1 << 40

    def stride(self) -> tuple[int, ...]:
        _, rows, _, blocks = self.shape
        return rows * 2 * blocks, 2 * blocks, blocks, 1

    def __getitem__(self, _index: Any) -> "Elsewhere":
        return self

    def copy_(self, _source: Any, non_blocking: bool = False) -> None:
        del non_blocking
        raise RuntimeError(REFUSAL)

    @property
    def memory(self) -> Any:
        raise RuntimeError(REFUSAL)


CASES = [("staged-offsets-v1", {}), ("staged-offsets-v2", V2)]


def ship(server: Server, target: Any) -> None:
    manager = server.manager
    with server.tensors.on(manager._stream):
        manager.copy_batch_block_offsets(target, [0], 1, 1, 1)


def admit(server: Server) -> None:
    request = server.request(0, list(range(9)))
    manager: Any = server.manager
    if hasattr(manager, "prepare_context"):
        manager.prepare_context(request)
    else:
        manager.impl.add_sequence_batch([(0, 9, 1)], [request])


@pytest.mark.parametrize("index", [None, 7], ids=["host", "another GPU"])
@pytest.mark.parametrize(("fix_id", "llm_args"), CASES, ids=["V1", "V2"])
@pytest.mark.parametrize("with_fix", [False, True], ids=["upstream", "with the fix"])
def test_it_raises_what_upstreams_own_statement_raises(
    with_fix: bool, fix_id: str, llm_args: dict[str, Any], index: int | None
) -> None:
    with standing_in("C"), applied([fix_id] if with_fix else []):
        server = Server(llm_args)
        admit(server)
        pools, width = server.manager.num_pools, server.manager.max_blocks_per_seq
        right = server.tensors.on_device(pools, 4, 2, width)
        for _ in range(2):  # by now everything is known
            ship(server, right)
        with pytest.raises(RuntimeError, match=REFUSAL):
            ship(server, Elsewhere((pools, 4, 2, width), index))
        ship(server, right)
        assert (fuse.of(fix_id).faults, fuse.of(fix_id).blown) == (int(with_fix), False)
        server.close()
