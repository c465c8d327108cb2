"""Scenarios that can go wrong on the installed classes and do not with the fixes. Each returns its error or None."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trtllm_kvfix.hazards.ground import Ground
from trtllm_kvfix.hazards.h3_admission_reuse.admission import reuses_in_a_batch
from trtllm_kvfix.hazards.h3_admission_reuse.budget import fits_the_budget
from trtllm_kvfix.hazards.h4_eviction_structures.installed import admits_alone
from trtllm_kvfix.hazards.h7_other_pinned_buffers.installed import keeps_its_inputs
from trtllm_kvfix.hazards.h8_uncomputed_blocks.installed import shares_a_prompt
from trtllm_kvfix.hazards.h9_graph_inputs.installed import keeps_its_tables
from trtllm_kvfix.hazards.shipping import V1, V2, ships
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.tools.selfcheck.scenarios.listener import listens_nowhere


@dataclass(frozen=True)
class Scenario:
    name: str
    fix_id: str
    run: Callable[[Ground, Upstream], str | None]
    # Its fix is needed by builds that are right without it, and finds that out while it runs.
    may_be_right: bool = False
    # Fixes without which it leaves everything alone on builds that need them.
    beside: tuple[str, ...] = ()


SCENARIOS = (
    Scenario("offsets-v1", "staged-offsets-v1", partial(ships, V1)),
    Scenario("offsets-v2", "staged-offsets-v2", partial(ships, V2)),
    Scenario("chunks-shared", "computed-blocks", shares_a_prompt, may_be_right=True),
    Scenario("admission-order", "batched-admission", reuses_in_a_batch),
    Scenario("budget", "token-budget", fits_the_budget, beside=("computed-blocks",)),
    Scenario("pins", "concurrent-pins", admits_alone),
    Scenario("inputs", "input-copy-fence", keeps_its_inputs),
    Scenario("graph-tables", "graph-inputs", keeps_its_tables),
    Scenario("listener", "nixl-listener", listens_nowhere),
)
