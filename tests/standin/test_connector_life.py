"""Requests that a connector loads or saves give up their blocks in time, and it learns of it (surface 6.2)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.standin.connector_double import CONFIG
from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server
from tests.standin.test_call_order import spy

START, ASK = "start_load_kv", "get_finished"
WAITS = 5  # iterations, at least


@contextmanager
def connected(variant: str, **llm_args: Any) -> Iterator[tuple[Server, Any, Any]]:
    """A server, its connector's scheduler and its connector manager."""
    with upstream(variant):
        server = Server({"kv_connector_config": CONFIG, **llm_args})
        manager = server.executor.kv_connector_manager
        try:
            yield server, manager.scheduler, manager
        finally:
            server.executor.shutdown()


def has_blocks(server: Server, request: Any) -> bool:
    try:
        return bool(server.manager.get_cache_indices(request))
    except RuntimeError:
        return False


@contextmanager
def between_steps(server: Server, action: Any) -> Iterator[None]:
    """The loop's own thread calls this once per iteration."""
    with server.pauses.at(server.pauses.CALL_SCHEDULE, action):
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_cpp_gives_the_connector_a_copy_of_its_own_half(variant: str) -> None:
    with connected(variant) as (server, scheduler, _):
        request = server.request(1, [1, 2, 3, 4, 5], lora_task_id=3, cache_salt_id=4)
        server.run([request])
        (asked,) = scheduler.asked
        assert type(asked) is not type(request) and isinstance(request, type(asked))
        assert not hasattr(asked, "py_request_id")
        assert (asked.request_id, asked.lora_task_id, asked.cache_salt_id) == (1, 3, 4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_metadata_is_built_of_nothing(variant: str) -> None:
    with connected(variant) as (server, scheduler, _):
        server.serve(server.workload(4))
        assert None not in scheduler.outputs


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_was_told_of_a_request_is_kept_when_it_has_ended(variant: str) -> None:
    """A request that comes with the id of another is reported as if it were that one, a V1 manager all along."""
    with connected(variant) as (server, scheduler, _):
        server.run([server.request(1, [1, 2, 3, 4, 5])])
        server.executor.responses.clear()
        server.run([server.request(1, [11, 12, 13, 14, 15, 16, 17, 18, 19])])
        new = [data for output in scheduler.outputs for data in output.new_requests]
        assert len(new) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cancelled_request_is_freed_at_once_and_from_stable_12_on_nobody_is_told(variant: str) -> None:
    with connected(variant) as (server, scheduler, _):
        request = server.request(1, [1, 2, 3, 4, 5], 40)

        def cancel() -> None:
            if len(request.output_tokens) == 5:
                server.executor.canceled_req_ids.append(1)

        with between_steps(server, cancel):
            (response,) = server.run([request])
        assert response.error_msg == "cancelled"
        assert not has_blocks(server, request)
        server.run([server.request(2, [1])])  # the last step of the cancelled one is behind
        assert scheduler.finished == ([1, 2] if variant == "A" else [2])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_load_that_was_cancelled_loses_its_blocks_and_comes_back_from_the_dead(variant: str) -> None:
    """The worker may still be writing into blocks that have another owner by now."""
    with connected(variant) as (server, scheduler, manager):
        scheduler.matched, scheduler.is_async = 8, True
        manager.worker.holds_back = True
        request, other = server.request(1, list(range(17))), server.request(2, [1, 2, 3], 30)

        def cancel() -> None:
            if request.is_in_transmission and request in server.executor.active_requests:
                server.executor.canceled_req_ids.append(1)
            if 1 in server.executor.responses:
                manager.worker.holds_back = False

        scheduler.only = {1}
        with between_steps(server, cancel):
            responses = server.run([request, other])
        assert [response.error_msg for response in responses] == ["cancelled", None]
        assert not has_blocks(server, request)
        assert list(manager.finished_async_loading_requests) == [1]
        assert request.is_context_init_state


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_worker_starts_where_there_is_a_batch_and_is_asked_in_every_iteration(variant: str, *, overlap: bool) -> None:
    with connected(variant, disable_overlap_scheduler=not overlap) as (server, scheduler, manager):
        scheduler.matched, scheduler.is_async = 8, True
        manager.worker.holds_back = True
        calls: list[str] = []
        spy(manager.worker, [START, ASK], calls)

        def let_it_come() -> None:
            if calls.count(ASK) >= 2 * WAITS:
                manager.worker.holds_back = False

        with between_steps(server, let_it_come):
            server.run([server.request(1, list(range(17)))])
        assert re.fullmatch(f"a*sa{{{WAITS},}}(sa)+a*", "".join("s" if call == START else "a" for call in calls))


@pytest.mark.parametrize(("variant", "kept"), [("A", False), ("B", False), ("B2", False), ("D", True), ("F", True)])
def test_a_saved_request_keeps_its_sequence_from_d_on(variant: str, kept: bool) -> None:
    with connected(variant) as (server, scheduler, manager):
        scheduler.saves = True
        manager.worker.holds_back = True
        request = server.request(1, list(range(9)))
        server.run([request])
        in_transfer = server.executor.async_transfer_manager.requests_in_transfer()
        assert list(in_transfer) == [1]
        assert has_blocks(server, request) == kept
        server.run([server.request(2, [1])])  # the batch that had it once more is behind
        assert scheduler.finished.count(1) == (2 if kept else 1)
        manager.worker.holds_back = False
        with server.executor.response_cv:
            assert server.executor.response_cv.wait_for(lambda: 1 not in in_transfer, 20)
        server.close()
        assert not has_blocks(server, request)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_id_that_was_not_handed_over_ends_the_loop(variant: str) -> None:
    with connected(variant) as (server, _, manager):
        manager.worker.invented = [77]
        with pytest.raises(KeyError, match="77"):
            server.run([server.request(1, [1, 2, 3])])


def test_a_scheduler_with_callbacks_by_group_needs_no_flat_ones() -> None:
    with upstream("D"):
        api = import_module("tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector")
        flat = {name: lambda *_: None for name in ("build_connector_meta", "get_num_new_matched_tokens")}
        both = ("request_finished_by_layer_group", "update_state_after_alloc_by_layer_group")
        grouped = type("Grouped", (api.KvCacheConnectorScheduler,), flat | {name: lambda *_: True for name in both})
        scheduler = grouped(None)
        manager = api.KvCacheConnectorManager(None, scheduler)
        manager.reject_flat_only_scheduler(2)
        with pytest.raises(RuntimeError, match="calls request_finished"):
            scheduler.request_finished(None, [])
        lacking = type("Lacking", (api.KvCacheConnectorScheduler,), flat)
        with pytest.raises(TypeError, match="abstract"):
            lacking(None)
