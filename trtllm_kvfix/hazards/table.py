"""The table: each hazard with its facts and, for each ground, its scenario or the reason why there is none.

`verify`, `selfcheck` and `demo` show a column each; `reproduce` shows the reproducer of each row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trtllm_kvfix.hazards.ground import Ground
    from trtllm_kvfix.overlay.upstream import Upstream

# A device, simulated or a GPU (`verify`); the classes of an installed TensorRT-LLM (`selfcheck`); our engine (`demo`).
GroundName = Literal["device", "installed", "engine"]


@dataclass(frozen=True)
class Scene:
    """The scenario in the engine: users chat, and read what they should not."""

    fix: str  # what the control lacks
    title: str
    without: str  # what goes wrong then
    config: Mapping[str, Any]  # of the engine, with all fixes on, where it differs from the default


@dataclass(frozen=True)
class Scenario:
    """The scenario on the installed classes. `run` returns what is wrong, or None."""

    name: str
    fix_id: str
    run: "Callable[[Ground, Upstream], str | None]"
    # Its fix is needed by builds that are right without it, and finds that out while it runs.
    may_be_right: bool = False
    # Fixes without which it leaves everything alone on builds that need them.
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hazard:
    room: str  # its folder here, and its page in docs/hazards, with `-` for `_`
    what: str  # what goes wrong
    symptoms: Mapping[str, str]  # what users see, by the fix that ends it
    scene: Scene | None = None
    # Why a ground cannot carry the scenario, for those that do not.
    not_on: Mapping[GroundName, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.room.partition("_")[0].upper()


HAZARDS = (
    Hazard(
        room="h1_block_offsets_v1",
        what="the V1 manager's pinned table of block offsets is refilled while it is read",
        symptoms={"staged-offsets-v1": "the same with V1's manager"},
        scene=Scene(
            "staged-offsets-v1",
            "The V1 table is refilled while its copy is queued",
            "The copy reads the table when it executes, and finds the next batch: a request's step runs over the "
            "blocks of another one.",
            {"blocks_primary": 112, "blocks_host": 160, "requests_max": 6, "tokens_max": 400},
        ),
    ),
    Hazard(
        room="h2_block_offsets_v2",
        what="the tables that the V2 manager's gather kernel reads are refilled while it reads them",
        symptoms={
            "staged-offsets-v2": (
                "garbled text, words of another user's answer, or `an illegal memory access was encountered`, under "
                "load"
            ),
        },
        scene=Scene(
            "staged-offsets-v2",
            "V2's rows and their numbers are rewritten while the kernel that reads them is queued",
            "The kernel gathers the rows of the next batch.",
            {"blocks_primary": 112, "blocks_host": 160, "requests_max": 6, "tokens_max": 400, "layout": "v2"},
        ),
    ),
    Hazard(
        room="h3_admission_reuse",
        what="cached prefixes that a batch counts on are evicted while it is admitted",
        symptoms={
            "token-budget": (
                "`total_num_tokens ... should be less than or equal to max_num_tokens`; then `/health` answers 200 "
                "while the executor is dead"
            ),
            "batched-admission": "a low KV cache hit rate when many requests arrive together",
        },
        not_on={
            "device": "only bookkeeping of the host goes wrong; `replay --compare` counts the tokens",
            "engine": "answers do not depend on how much is reused, and nothing here dies of a batch that is too large",
        },
    ),
    Hazard(
        room="h4_eviction_structures",
        what="two threads change the eviction structures at once",
        symptoms={
            "concurrent-pins": (
                "the count of free blocks drifts, or the eviction policy crashes, while another thread pins blocks"
            ),
        },
        not_on={
            "device": "only bookkeeping of the host goes wrong; `make race-control` shows it",
            "engine": "one thread alone calls its manager",
        },
    ),
    Hazard(
        room="h5_transfer_order",
        what="blocks are stored before they are written, or loaded while they are read",
        symptoms={"transfer-order": "the same with a connector for KV cache offloading"},
        scene=Scene(
            "transfer-order",
            "Blocks move between the tiers, and no event orders that against the model",
            "A step reads a block whose load is still queued: it holds what its last owner left.",
            {
                "tokens_per_block": 16,
                "blocks_primary": 56,
                "blocks_host": 80,
                "requests_max": 6,
                "tokens_max": 256,
                "late_copies": True,
            },
        ),
        not_on={"installed": "a connector under load shows it, which takes a model and a server"},
    ),
    Hazard(
        room="h6_listener_port",
        what="two agents of one host share a listener port",
        symptoms={"nixl-listener": "`Failed to bind metadata listener socket`"},
        not_on={
            "device": "a port, and no memory: `make test-nixl` opens it twice",
            "engine": "it has no agents",
        },
    ),
    Hazard(
        room="h7_other_pinned_buffers",
        what="other pinned buffers are refilled while they are read",
        symptoms={
            "input-copy-fence": (
                "such an access, or wrong tokens or positions, up to 1.3.0rc14 or with pipeline parallelism"
            ),
        },
        scene=Scene(
            "input-copy-fence",
            "The buffer of a step's inputs is refilled while its copy is queued",
            "Tokens and positions of the next step are computed in the place of this one's.",
            {"blocks_primary": 112, "blocks_host": 160, "requests_max": 5, "tokens_max": 160},
        ),
        not_on={"device": "its order of calls is that of H1, with another buffer"},
    ),
    Hazard(
        room="h8_uncomputed_blocks",
        what="blocks that nobody computed are offered for reuse",
        symptoms={
            "computed-blocks": "wrong answers to prompts that share a prefix with a cancelled request",
            "connector-prefixes": "the same with V2, sliding windows and a connector",
        },
        scene=Scene(
            "computed-blocks",
            "A prompt that nobody computed to its end is offered to others",
            "A stranger sends the last user's notes and hangs up in the middle. Blocks that were never computed are "
            "found in the cache, and hold what was there before.",
            {"blocks_primary": 112, "blocks_host": 160, "requests_max": 4, "tokens_max": 48, "manager": "one-by-one"},
        ),
        not_on={"device": "only bookkeeping of the host goes wrong"},
    ),
    Hazard(
        room="h9_graph_inputs",
        what="tables that a CUDA graph reads at replay are refilled while it is queued",
        symptoms={
            "graph-inputs": "an answer with another user's LoRA adapter, with routed experts (MoE) and CUDA graphs"
        },
        scene=Scene(
            "graph-inputs",
            "A table that a graph reads at its replay is refilled while the replay is queued",
            "A letter is computed with another user's adapter, which shouts, or does not.",
            {"tokens_per_block": 32, "blocks_primary": 32, "blocks_host": 40, "requests_max": 4, "tokens_max": 96},
        ),
    ),
    Hazard(
        room="h10_step_prologue_trim",
        what="a torn launch counts as made, so the equal ones that would mend it are skipped",
        symptoms={"step-prologue-trim": "the same for many steps (7 of 7), with the step-prologue trim"},
        not_on={
            "device": "the torn launch is that of H2, and what keeps it is a record on the host",
            "installed": "`offsets-v2` shows the torn launch; `reproduce H10` shows that it stays",
            "engine": "it skips no launch",
        },
    ),
    Hazard(
        room="h13_ephemeral_sources",
        what="the driver reads a pageable source after the call during which it was asked to read it",
        symptoms={
            "ephemeral-sources": "wrong answers once pages have moved between tiers, with V2 and a cold-page codec"
        },
        not_on={
            "installed": "upstream's copy is in C++, where Python cannot look at its source",
            "engine": "its copies read pinned memory",
        },
    ),
    Hazard(
        room="h17_partial_copies",
        what="a block that a prompt matches in part is overwritten in the host tier before it is copied",
        symptoms={"partial-copies": "wrong answers, or another user's text in them, with `host_cache_size` above 0"},
        not_on={
            "device": "only bookkeeping of the host goes wrong; the copy itself is in order",
            "engine": "its manager holds the block that it copies from",
        },
    ),
)


def scenarios() -> tuple[Scenario, ...]:
    """The column of the installed classes."""
    return tuple(
        scenario
        for hazard in HAZARDS
        if "installed" not in hazard.not_on
        for scenario in import_module(f"{__package__}.{hazard.room}.installed").SCENARIOS
    )
