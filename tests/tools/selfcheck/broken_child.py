"""The child of a self-check in which one fix is put on and does nothing: BROKEN names what is broken."""

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.fixes.proofs import as_it_was
from tests.tools.selfcheck.ground import StandInGround
from trtllm_kvfix.fixes.input_copy_fence.fix import InputFence
from trtllm_kvfix.fixes.token_budget.fix import Limits, Plan, batch_tokens
from trtllm_kvfix.tools.selfcheck.steps import main

wait = InputFence.wait


def called_as_upstream_does(*given: Any) -> Callable[..., Any]:
    """A replacement that has the original last, behind the fix's own."""
    original: Callable[..., Any] = given[-1]

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return replacement


def planned_as_it_stands(batch: Any, limits: Limits, **_: Any) -> Plan:
    tokens = batch_tokens(batch, limits, lambda _: False)
    return Plan((), (), tokens, tokens)


def waiting_for_all_or_nobody(fence: InputFence, engine: Any = None) -> None:
    if engine is None:
        wait(fence)


def nothing(*_: Any) -> None:
    pass


WAYS: dict[str, tuple[str, Callable[..., Any]]] = {
    "staged-offsets-v1": ("fixes.staged_offsets_v1.fix.staged_copy", called_as_upstream_does),
    "staged-offsets-v2": ("fixes.staged_offsets_v2.fix.StagedLaunch", called_as_upstream_does),
    "computed-blocks": ("fixes.computed_blocks.fix.ComputedBlocks.storing", as_it_was),
    "connector-prefixes behind a match": ("fixes.connector_prefixes.fix.first_passed", nothing),
    "connector-prefixes in a block": ("fixes.connector_prefixes.fix.WrittenPages.preparing", as_it_was),
    "partial-copies": ("fixes.partial_copies.fix.UncopiedMatches.making", as_it_was),
    "batched-admission": ("fixes.batched_admission.fix.line_up", nothing),
    "token-budget": ("fixes.token_budget.fix.plan", planned_as_it_stands),
    "concurrent-pins": ("fixes.concurrent_pins.fix.Turns.guarded", as_it_was),
    "input-copy-fence before scheduling": ("fixes.input_copy_fence.fix.InputFence.waiting", as_it_was),
    "input-copy-fence before inputs": ("fixes.input_copy_fence.fix.InputFence.wait", waiting_for_all_or_nobody),
    "input-copy-fence in a pipeline": ("fixes.input_copy_fence.fix.UpstreamsFence.waiting", as_it_was),
    "graph-inputs": ("fixes.graph_inputs.fix.Reads.wait", nothing),
    "nixl-listener": ("fixes.nixl_listener.fix.without_listener", as_it_was),
}

if __name__ == "__main__":
    name, instead = WAYS[os.environ["BROKEN"]]
    with mock.patch(f"trtllm_kvfix.{name}", instead):
        main(sys.argv[1:], StandInGround)
