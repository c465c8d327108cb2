"""The two classes that upstream's configuration names. They translate upstream's calls and decide nothing."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from trtllm_kvfix import settings as settings_module
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.forks import HomeProcess
from trtllm_kvfix.offload import patches
from trtllm_kvfix.offload.host_tier import HostTierMaker
from trtllm_kvfix.offload.ledger import Step, link_of, unlink
from trtllm_kvfix.offload.patches import (
    KeptBlocks,
    WholeRequests,
    bases,
    connector_module,
    gives_each_rank_a_scheduler,
    lets_go_of_all,
    warn_where_nothing_orders_copies,
)
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.offload.transfers import (
    ByGroup,
    blocks_by_group,
    flat,
    layout_of,
    require_full_attention,
    require_no_sliding,
)
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.overlay import registry
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, RESOURCE_MANAGER
from trtllm_kvfix.ranks import OneRank, ranks_here
from trtllm_kvfix.runtime_files import folder_of
from trtllm_kvfix.staging.place import current_place

SchedulerBase, WorkerBase = bases()
NAME = "offload-connector"
PACKAGE = "trtllm_kvfix.offload"
REMOTE = PACKAGE + ".remote"


class KvfixOffloadScheduler(SchedulerBase):  # type: ignore[misc, valid-type]
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        require_our_classes(llm_args)
        settings = settings_module.load().offload
        file = Path(settings.control_file) if settings.control_file else None
        tokens_per_block = int(llm_args.kv_cache_config.tokens_per_block)
        make_side: Callable[..., OffloadScheduler] = OffloadScheduler
        if settings.remote.kind is not None:  # or nothing of the remote tier is imported
            make_side = import_module(f"{REMOTE}.scheduler").remote_scheduler
        self.side = make_side(settings, tokens_per_block, link_of(llm_args), Switches(file))
        self.batch = WholeRequests()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        whole = self.batch.whole(request)
        if getattr(whole, patches.LOADS_NO_MORE, False):
            return 0, False
        return self.side.get_num_new_matched_tokens(whole, num_computed_tokens)

    def reserve_prefix(self, request: Any, num_computed_tokens: int, reservation_id: int) -> tuple[int, bool]:
        if getattr(request, patches.LOADS_NO_MORE, False):
            return 0, False
        return self.side.reserve_prefix(request, num_computed_tokens, reservation_id)

    def release_prefix_reservation(self, request: Any, reservation_id: int, start: int, end: int) -> None:
        del request
        self.side.release_prefix_reservation(reservation_id, start, end)

    def update_state_after_alloc(self, request: Any, block_ids: Sequence[Any]) -> None:
        self.side.update_state_after_alloc(request, [flat(block_ids)])

    def update_state_after_alloc_by_layer_group(self, request: Any, block_ids_by_layer_group: ByGroup) -> None:
        self.side.update_state_after_alloc(request, blocks_by_group(block_ids_by_layer_group))

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        return self.side.build_connector_meta(scheduler_output)

    def request_finished(self, request: Any, cache_block_ids: Sequence[Any]) -> bool:
        return self.side.request_finished(request, [flat(cache_block_ids)])

    def request_finished_by_layer_group(self, request: Any, cache_block_ids_by_layer_group: ByGroup) -> bool:
        return self.side.request_finished(request, blocks_by_group(cache_block_ids_by_layer_group))

    def request_reset(self, request: Any) -> None:
        self.side.request_reset(request)

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        """The cancelled end of a promise gets no room, or is loaded and then computed over."""
        del end
        self.side.cancel_load(request, start)

    def wait_for_initialization(self) -> None:
        """Called when everything has been registered; there is nothing to wait for."""
        self.side.require_tier()


class KvfixOffloadWorker(WorkerBase):  # type: ignore[misc, valid-type]
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        require_our_classes(llm_args)
        require_supported(llm_args)
        warn_where_nothing_orders_copies(llm_args.kv_cache_config)
        settings = settings_module.load()
        ranks, link = ranks_here(settings.agreement_timeout_s), link_of(llm_args)
        is_alone = getattr(llm_args, "enable_attention_dp", False)  # it has requests and a scheduler of its own
        self._args = llm_args
        self._copies: Any = None  # the stream that runs after upstream's own copies into blocks
        self.copies_unknown = False  # a fault of ours: loads that would follow these copies do not begin
        make_side: Callable[..., OffloadWorker] = OffloadWorker
        if settings.offload.remote.kind is not None:
            make_side = partial(import_module(f"{REMOTE}.worker").worker_of, llm_args)
        self.side = make_side(
            settings.offload, link, OneRank() if is_alone else ranks, HostTierMaker(settings.offload),
            at_start=ranks, saved_max=None if lets_go_of_all() else 1,
            report=TierReport(folder=folder_of(settings), rank=ranks.rank),
        )  # fmt: skip
        link.kept = self.kept = KeptBlocks(self.side)
        link.choosers = self.choosers = patches.Choosers(patches.room_here(), self.side.choosers)
        link.slots_now = partial(patches.slots_now, self.choosers.room)
        module = connector_module()
        if module is not None:
            replace_seams(module.__name__)
        # If upstream does not: when it drops this object, or when the process ends.
        self._home = HomeProcess()
        self._end = weakref.finalize(self, give_back, self.side, id(llm_args), self._home)

    @property
    def cache_manager(self) -> Any:
        return self.choosers.room.manager

    @property
    def requests_to_recompute(self) -> dict[int, int]:
        return self.side.recompute

    @property
    def reservations_to_recompute(self) -> dict[int, int]:
        return self.side.reserved_to_recompute

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        require_one_pool(self._args)
        self.side.register(current_place().device, [kv_cache_tensor])

    def register_kv_cache_layout(self, layout: Any) -> None:
        """Called if the cache has layer groups; upstream's own fallback knows only one tensor."""
        tokens_per_block, tokens_max = int(self._args.kv_cache_config.tokens_per_block), tokens_max_of(self._args)
        self.side.register_layout(current_place().device, lambda: layout_of(layout, tokens_per_block, tokens_max))

    def bind_connector_meta(self, metadata: Any) -> None:
        super().bind_connector_meta(metadata)
        self.side.bind(metadata)

    def note_cache_manager(self, kv_cache_manager: Any) -> None:
        """Called with each batch; the first ones belong to the warm-up."""
        if kv_cache_manager is not self.cache_manager:
            require_no_sliding(kv_cache_manager)
            patches.warn_where_nobody_gives_way(kv_cache_manager)
            self.choosers.room.manager = kv_cache_manager
        self._copies = patches.stream_behind_copies(kv_cache_manager)

    def start_load_kv(self, stream: Any) -> None:
        # Nothing that the side keeps may hold this object, or it would never be freed.
        follow = partial(type(self).follow_copies, self._copies, self.copies_unknown, stream)
        self.side.start(handle_of(stream), before_loads=follow)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """A request that loads is not scheduled until its load is over."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Blocks are stored whole, once all layers have written them."""

    def wait_for_save(self, stream: Any) -> None:
        """No wait is due: blocks that this step computes are stored with a later one, or when the request ends."""

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        return self.side.finished(finished_gen_req_ids, started_loading_req_ids)

    def get_finished_prefix_loads(self) -> list[int]:
        return self.side.take_reserved()

    @staticmethod
    def follow_copies(copies: Any, is_unknown: bool, stream: Any) -> None:
        if is_unknown:
            raise LookupError("the executor's cache manager is not known")
        if copies is not None:
            stream.wait_stream(copies)

    def shutdown(self) -> bool:
        """End within kvfix.offload.shutdown_timeout_s; True if everything was given back. Late releases call it."""
        self._end.detach()
        return give_back(self.side, id(self._args), self._home)


def give_back(side: OffloadWorker, args_id: int, home: HomeProcess) -> bool:
    """Give back what the worker side has. A child of fork() has neither its threads nor its memory."""
    if home.left():
        return True
    unlink(args_id)
    return side.close()


def replace_seams(connector_module: str) -> None:
    """Hook in where upstream has no callback: once, however often this is called. A build without them is refused."""
    for module in (RESOURCE_MANAGER, PY_EXECUTOR):
        import_module(module)  # an executor has done so before it loads a connector
    replacements = [
        *patches.ending_replacements(connector_module),
        *patches.batch_replacements(),
        *patches.noting_replacements(),
    ]
    registry.here.install(NAME, replacements)


def handle_of(stream: Any) -> int:
    return int(getattr(stream, "cuda_stream", stream))


def tokens_max_of(llm_args: Any) -> int | None:
    """The most tokens of a request, if the configuration says it."""
    tokens_max = getattr(llm_args, "max_seq_len", None)
    return None if tokens_max is None else int(tokens_max)


def require_our_classes(llm_args: Any) -> None:
    """Refuse swapped classes, which would fail much later, with an error that does not mention the configuration."""
    config = getattr(llm_args, "kv_connector_config", None)
    if getattr(config, "connector_module", None) not in (PACKAGE, __name__):
        return
    wanted = {"connector_scheduler_class": KvfixOffloadScheduler, "connector_worker_class": KvfixOffloadWorker}
    for setting, kind in wanted.items():
        given = getattr(config, setting, kind.__name__)
        if given != kind.__name__:
            raise SettingsError(f"kv_connector_config.{setting} is {given}; write {kind.__name__}")


def require_supported(llm_args: Any) -> None:
    """Refuse settings with which blocks would hold something else than the connector believes."""
    refuse_second_host_tier(llm_args)
    for window in getattr(llm_args.kv_cache_config, "max_attention_window", None) or ():
        require_full_attention("kv_cache_config.max_attention_window", window, tokens_max_of(llm_args))
    if getattr(llm_args, "speculative_config", None) is not None:
        raise SettingsError(
            "speculative_config is set; rejected draft tokens give blocks back, connectors do not learn of it, "
            "so saved blocks could be another request's. Serve without speculative decoding, or without the connector"
        )
    if getattr(llm_args.kv_cache_config, "enable_block_reuse", True) is False:
        raise SettingsError(
            "kv_cache_config.enable_block_reuse is false; then upstream computes over what the host tier has loaded. "
            "Set it to true"
        )
    if getattr(llm_args, "enable_attention_dp", False) and not gives_each_rank_a_scheduler():
        raise SettingsError(
            "enable_attention_dp is set; each of its ranks serves requests of its own, and this TensorRT-LLM has one "
            "connector scheduler for all ranks. Serve without attention data parallelism, or without the connector"
        )


def require_one_pool(llm_args: Any) -> None:
    """Refuse a cache that registers one tensor and keeps a part of each block elsewhere, where it is not saved."""
    dtype = str(getattr(llm_args.kv_cache_config, "dtype", "auto")).lower()
    if dtype == "nvfp4":
        raise SettingsError(
            "kv_cache_config.dtype is nvfp4, whose block scales are in a pool of their own, but this cache registers "
            "one pool with connectors; use another dtype, or KVCacheManagerV2"
        )
    if getattr(llm_args, "sparse_attention_config", None) is not None:
        raise SettingsError(
            "sparse_attention_config is set; such attention keeps an index of each block in a pool of its own, and "
            "this cache registers one pool with connectors. Serve without the offload connector"
        )


def refuse_second_host_tier(llm_args: Any) -> None:
    """Refuse upstream's own host tier. It moves blocks between slots, but connectors get only the numbers of blocks."""
    host_cache_size = getattr(llm_args.kv_cache_config, "host_cache_size", None)
    if host_cache_size:
        raise SettingsError(
            f"kv_cache_config.host_cache_size is {host_cache_size}; with a host tier of upstream's own, a block's "
            "number does not give its place; set it to 0, since this connector is the host tier"
        )
