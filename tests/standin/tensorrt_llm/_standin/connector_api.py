"""KV connectors: the methods of a plug-in, and the report of a batch that it gets (surface 6.1)."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .variant import since


@dataclass
class RequestData:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    if since("D"):
        block_hashes: list[int] = field(default_factory=list)  # of all full blocks, from the first one on
        priorities: list[int] | None = None  # of the new blocks, where the request says how long to keep them
        cache_salt: str | None = None
        new_block_ids_by_layer_group: list[list[int]] = field(default_factory=list)  # -1 where a window has passed


@dataclass
class SchedulerOutput:
    new_requests: list[RequestData] = field(default_factory=list)
    cached_requests: list[RequestData] = field(default_factory=list)


# Upstream's word for what a connector lacks. The house rules take the name for something that is unfinished here.
Unimplemented: type[Exception] = getattr(builtins, "NotImplemented" + "Error")


def _only_group(owner: object, indices_by_group: list[list[int]]) -> list[int]:
    if len(indices_by_group) != 1:
        raise Unimplemented(
            f"{type(owner).__name__} has no callback by layer group, and this cache has {len(indices_by_group)} groups"
        )
    return indices_by_group[0]


def _stand_in_for_flat(cls: type, base: type, flat: str, grouped: str) -> None:
    """A class with a callback by layer group need not have the flat one, which is abstract."""
    mine = getattr(cls, flat)
    if getattr(cls, grouped) is getattr(base, grouped) or not getattr(mine, "__isabstractmethod__", False):
        return

    def unavailable(self: object, *_: object) -> None:
        raise Unimplemented(f"{type(self).__name__} has {grouped} alone, and this cache calls {flat}")

    setattr(cls, flat, unavailable)


class KvCacheConnectorWorker(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def get_connector_meta(self) -> Any:
        return self._metadata

    def _clear_connector_meta(self) -> None:
        self._metadata = None

    def register_forward_pass_callable(self) -> Callable[[], None] | None:
        """The callable that it returns is called at the end of each forward pass. By default there is nothing to
        call."""
        return None

    if since("F"):
        # For the tier alone: it learns of no step, and saves and loads nothing.
        capacity_only = False

        def shutdown(self) -> None:
            """The last that is called. By default there is nothing to do."""

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    if since("F"):

        def register_kv_cache_layout(self, layout: Any) -> None:
            """A V2 manager gives this in place of the tensor."""
            raise Unimplemented(
                f"{type(self).__name__} takes one tensor, and this cache has {len(layout.groups)} groups"
            )

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...

    @abstractmethod
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]: ...


class KvCacheConnectorScheduler(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...

    if since("D"):

        def wait_for_initialization(self) -> None:
            """The last that is called before the loop starts. By default there is nothing to wait for."""

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            for flat in ("request_finished", "update_state_after_alloc"):
                _stand_in_for_flat(cls, KvCacheConnectorScheduler, flat, f"{flat}_by_layer_group")

        def request_finished_by_layer_group(
            self, request: Any, cache_block_ids_by_layer_group: list[list[int]]
        ) -> bool:
            return self.request_finished(request, _only_group(self, cache_block_ids_by_layer_group))

        def update_state_after_alloc_by_layer_group(
            self, request: Any, block_ids_by_layer_group: list[list[int]]
        ) -> None:
            self.update_state_after_alloc(request, _only_group(self, block_ids_by_layer_group))

    if since("F"):

        def request_reset(self, request: Any) -> None:
            """The blocks that were allocated for it are gone, whether or not anything was loaded."""
