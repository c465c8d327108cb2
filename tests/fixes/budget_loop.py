"""An executor around a resource manager with the budget in place, of doubles."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

from tests.fixes.doubles import TOKENS_PER_BLOCK, Request
from trtllm_kvfix.fixes.token_budget.fix import BudgetKeeper
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.vote import Voting, Votings
from trtllm_kvfix.ranks import Tag


class Kind(Enum):
    SEQ_SLOT_MANAGER = "slots"
    PEFT_CACHE_MANAGER = "adapters"
    SPEC_RESOURCE_MANAGER = "drafter"
    DRAFT_KV_CACHE_MANAGER = "draft"
    KV_CACHE_MANAGER = "main"


@dataclass
class Bound:
    sequences: set[int] = field(default_factory=set)
    removals: list[tuple[int, Any, bool]] = field(default_factory=list)

    def add_sequence(self, request_id: int) -> None:
        assert request_id not in self.sequences, "upstream checks that a sequence is new"
        self.sequences.add(request_id)

    def remove_sequence(self, request_id: int, request: Any, pin: bool) -> None:
        assert request is not None, "None is refused"
        self.sequences.remove(request_id)
        self.removals.append((request_id, request, pin))


class KvManager:
    """Reuses as many tokens as a test sets, and reports from inside, as upstream did before reports became a step."""

    tokens_per_block = TOKENS_PER_BLOCK

    def __init__(self, connector: Any = None, reuse: dict[int, int] | None = None) -> None:
        self.impl = Bound()
        self.connector = self.kv_connector_manager = connector
        self.reuse = reuse or {}

    def prepare_resources(self, batch: Any) -> None:
        for request in batch.context_requests:
            if request.is_first_context_chunk and self._kv_connector_should_add_sequence(request):
                self.impl.add_sequence(request.request_id)
                if self.connector is not None:
                    self.connector.ask(request)
                reused = self.reuse.get(request.request_id, 0)
                request.context_current_position = request.prepopulated_prompt_len = reused
                request.context_chunk_size = min(request.context_chunk_size, request.context_remaining_length)
                if self.connector is not None:
                    self.connector.update_state_after_alloc(request, [request.request_id])
        if self.connector is not None:
            self.connector.build_scheduler_output(batch, self)

    def _kv_connector_should_add_sequence(self, request: Request) -> bool:
        return self.connector is None or self.connector.should_add_sequence(request)

    def free_resources(self, request: Request, pin_on_release: bool = False) -> None:
        self.impl.remove_sequence(request.request_id, request, pin_on_release)


class HybridManager(KvManager):
    """Has a state besides, as managers of state-space models do."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[int] = set()

    def prepare_resources(self, batch: Any) -> None:
        self.states |= {r.request_id for r in batch.context_requests if r.is_first_context_chunk}
        super().prepare_resources(batch)

    def free_resources(self, request: Request, pin_on_release: bool = False) -> None:
        self.states.remove(request.request_id)
        KvManager.free_resources(self, request, pin_on_release)


class Slots:
    """Given once, however often the first chunk is seen."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def prepare_resources(self, batch: Any) -> None:
        self.held |= {r.request_id for r in batch.context_requests if r.is_first_context_chunk}

    def free_resources(self, request: Request) -> None:
        self.held.discard(request.request_id)


class Drafting(Slots):
    """Gives one out of its stock at each first chunk that it sees."""

    def prepare_resources(self, batch: Any) -> None:
        for request in batch.context_requests:
            if request.is_first_context_chunk:
                assert request.request_id not in self.held, "a slot is lost"
        super().prepare_resources(batch)


class ResourceManager:
    def __init__(self, managers: dict[Any, Any]) -> None:
        self.resource_managers = managers

    def prepare_resources(self, scheduled_batch: Any) -> None:
        for manager in self.resource_managers.values():
            manager.prepare_resources(scheduled_batch)


class Connector:
    def __init__(self) -> None:
        self.told: list[int] = []
        self.reported: list[int] = []
        self.asked: list[int] = []
        self.matches: dict[int, int] = {}
        self.new_async_requests = SimpleNamespace(loading={})
        self.scheduler_output_manager = SimpleNamespace(external_loads={})
        self.loaded: set[int] = set()

    def should_add_sequence(self, request: Request) -> bool:
        return request.request_id not in self.loaded

    def ask(self, request: Request) -> None:
        self.asked.append(request.request_id)
        self.scheduler_output_manager.external_loads[request.request_id] = self.matches.get(request.request_id, 0)

    def update_state_after_alloc(self, req: Request, block_ids: list[int]) -> None:
        assert block_ids == [req.request_id]
        self.told.append(req.request_id)

    def build_scheduler_output(self, batch: Any, manager: Any) -> None:
        assert manager.impl.sequences >= {request.request_id for request in batch.context_requests}
        self.reported += [request.request_id for request in batch.context_requests]
        self.scheduler_output_manager.external_loads = {}


@dataclass(frozen=True)
class Mapping:
    world_size: int
    pp_size: int = 1
    enable_attention_dp: bool = False


def mended(keeper: BudgetKeeper, owner: Any) -> Any:
    """The class with its replacements, of this keeper alone."""
    return type(
        owner.__name__,
        (owner,),
        {
            "_kv_connector_should_add_sequence": keeper.adding(owner._kv_connector_should_add_sequence),
            "free_resources": keeper.releasing(owner.free_resources),
        },
    )


class Loop:
    """Schedules nothing itself: a test prepares the batch that it wants."""

    def __init__(
        self,
        *,
        budget: int,
        chunked: bool = False,
        connector: Any = None,
        reuse: dict[int, int] | None = None,
        safe: bool = True,
        comm: Any = None,
        fuse: Fuse | None = None,
    ) -> None:
        fuse = Fuse("token-budget") if fuse is None else fuse
        votings = Votings(lambda: Voting(fuse, Tag.BUDGET, find=lambda: comm))
        keeper = BudgetKeeper(fuse, votings, lambda _impl: safe)
        self.fuse = fuse
        self.main, self.draft = mended(keeper, KvManager)(connector, reuse), mended(keeper, HybridManager)()
        self.main.mapping = None if comm is None else Mapping(comm.Get_size())
        if connector is not None:
            report = keeper.reporting(type(connector).build_scheduler_output)
            connector.__class__ = type("Patched", (type(connector),), {"build_scheduler_output": report})
        self.slots, self.adapters, self.drafter = Slots(), Slots(), Drafting()
        self.resource_manager = ResourceManager(
            {
                Kind.SEQ_SLOT_MANAGER: self.slots,
                Kind.PEFT_CACHE_MANAGER: self.adapters,
                Kind.SPEC_RESOURCE_MANAGER: self.drafter,
                Kind.DRAFT_KV_CACHE_MANAGER: self.draft,
                Kind.KV_CACHE_MANAGER: self.main,
            }
        )
        features = SimpleNamespace(chunked_prefill=chunked)
        self.model_engine = SimpleNamespace(max_num_tokens=budget, attn_runtime_features=features)
        self.dist = SimpleNamespace(pp_size=1)
        self.disable_overlap_scheduler = False
        self._schedule: Callable[..., Any] = keeper.learning(lambda _executor: None)
        self._fitting = keeper.fitting(ResourceManager.prepare_resources)

    def prepare(self, batch: Any) -> None:
        self._schedule(self)
        self._fitting(self.resource_manager, batch)
