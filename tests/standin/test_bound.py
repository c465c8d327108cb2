"""The bound classes take, refuse and keep what each variant says (surface 4.2 to 4.4)."""

from importlib import import_module
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server

BOUND = "tensorrt_llm.bindings.internal.batch_manager"


def running(server: Any, tokens: list[int], request_id: int = 1) -> Any:
    """A request that has its blocks, as the dummies of warm-up have."""
    server.manager.add_dummy_requests([request_id + 100], [1])  # the manager is in use
    request = server.request(request_id, tokens)
    impl, beam = server.manager.impl, request.sampling_config.beam_width
    if hasattr(impl, "add_sequence_batch"):
        impl.add_sequence_batch([(request_id, request.prompt_len, beam)], [request])
    else:
        impl.add_sequence(request_id, request.prompt_len, beam, request)
    return request


@pytest.mark.parametrize("variant", VARIANTS)
def test_bound_methods_refuse_none_keywords_and_new_attributes(variant: str) -> None:
    """Neither is the caller's choice: a fix that passes None ends the server (surface 4.3)."""
    with upstream(variant):
        server = Server()
        impl = server.manager.impl
        request = running(server, [1, 2, 3])
        with pytest.raises(TypeError):
            impl.remove_sequence(1, None, False)
        with pytest.raises(TypeError):
            impl.remove_sequence(request_id=1, llm_request=request, pin_on_release=False)
        with pytest.raises(TypeError):
            impl.store_context_blocks(None)
        with pytest.raises(AttributeError):
            impl.remove_sequence = print
        with pytest.raises(RuntimeError):
            impl.get_cache_block_ids(99, server.manager.max_seq_len)
        with pytest.raises(RuntimeError):
            running(server, [1, 2, 3])
        impl.remove_sequence(1, request, False)
        impl.remove_sequence(1, request, False)  # an id that nobody has is nothing to complain about
        server.close()


def unique_tokens(request: Any) -> list[Any]:
    """Stable 1.2 binds no way of asking a request for them; a key that is made of ints has them."""
    if hasattr(request, "get_unique_tokens"):
        return list(request.get_unique_tokens(0))
    return list(import_module(BOUND).BlockKey(tokens=request.get_tokens(0)).unique_tokens)


@pytest.mark.parametrize("variant", ["B", "B2"])
def test_the_key_of_the_first_missing_block_has_all_tokens_up_to_its_end(variant: str) -> None:
    with upstream(variant):
        server = Server()
        impl = server.manager.impl
        tokens = list(range(19))
        server.run([server.request(1, tokens)])
        shorter, longer = server.request(2, tokens[:9]), server.request(3, tokens[:16] + [90] * 8)
        assert impl.find_new_context_block(unique_tokens(shorter), shorter) is None
        key = impl.find_new_context_block(unique_tokens=unique_tokens(longer), llm_request=longer)
        assert len(key.unique_tokens) - impl.tokens_per_block == 16
        with pytest.raises(TypeError):
            impl.find_new_context_block(longer.get_tokens(0), longer)
        server.close()


@pytest.mark.parametrize("variant", ["B", "B2"])
def test_with_several_windows_the_first_missing_block_is_an_error(variant: str) -> None:
    with upstream(variant):
        server = Server({"kv_cache_config": {"max_attention_window": [16, 64]}})
        assert server.manager.is_vswa and server.manager.impl.is_variable_window
        request = running(server, list(range(9)))
        with pytest.raises(RuntimeError):
            server.manager.impl.find_new_context_block(unique_tokens(request), request)
        server.close()


# Surface 4.4: what an uncomputed request leaves behind for others. 1.2.1 repaired it, and nothing shows that.
@pytest.mark.parametrize(
    ("variant", "repaired", "after_a_chunk", "after_a_release"),
    [("A", "", 16, 18), ("B", "", 16, 18), ("B", "1", 8, 8), ("B2", "", 8, 18), ("C", "", 8, 8), ("D", "", 8, 8)],
)
def test_what_is_stored_of_a_prompt_that_was_not_computed(
    variant: str, repaired: str, after_a_chunk: int, after_a_release: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_COMPUTED_ONLY", repaired)
    tokens = list(range(19))
    with upstream(variant):
        server = Server()
        request = running(server, tokens)
        request.context_current_position = 8
        server.manager.impl.store_context_blocks(request)
        assert running(server, tokens, 2).context_current_position == after_a_chunk
        server.manager.free_resources(request)
        assert running(server, tokens, 3).context_current_position == after_a_release
        server.close()


@pytest.mark.parametrize("variant", ["A", "B", "B2", "C", "D"])
def test_a_dummy_is_not_stored(variant: str) -> None:
    """The one way to release without storing: None is refused."""
    tokens = list(range(19))
    with upstream(variant):
        server = Server()
        request = running(server, tokens)
        request.is_dummy_request = True
        server.manager.free_resources(request)
        assert running(server, tokens, 2).context_current_position == 0
        server.close()


def test_a_chunk_exists_in_the_context_phase_alone_and_is_gone_behind_it() -> None:
    with upstream("D"):
        server = Server()
        request = server.request(1, list(range(10)))
        request.context_chunk_size = 99
        assert request.context_chunk_size == 10, "no more than what remains"
        request.context_chunk_size = 8
        request.move_to_next_context_chunk()
        assert (request.context_current_position, request.context_chunk_size) == (8, 0)
        request.state = type(request.state).GENERATION_IN_PROGRESS
        with pytest.raises(RuntimeError):
            request.context_chunk_size = 2
        with pytest.raises(RuntimeError):
            _ = request.context_chunk_size
        server.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pause_makes_a_prompt_of_what_was_generated(variant: str) -> None:
    with upstream(variant):
        server = Server()
        request = server.request(1, [1, 2, 3], 5)
        request.add_new_token(4, 0)
        with pytest.raises(TypeError):
            request.pause(None)
        request.pause(100)
        assert (request.prompt_len, request.max_new_tokens, request.is_context_init_state) == (4, 4, True)
        assert (request.input_tokens, request.output_tokens) == ([1, 2, 3], [4])
        server.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_requests_of_the_target_are_left_as_they_are(variant: str) -> None:
    with upstream(variant):
        server = Server()
        batch = server.scheduled_requests()
        request = server.request(1, [1, 2, 3])
        batch.generation_requests = [request]
        context = import_module("tensorrt_llm._torch.pyexecutor.resource_manager").request_context
        request.use_draft_model = True
        with context(False, batch):
            assert request.use_draft_model
        with context(True, batch):
            assert request.use_draft_model
        assert not request.use_draft_model
        server.close()


@pytest.mark.parametrize(("variant", "rewound"), [("A", [1]), ("B", []), ("D", [])])
def test_what_was_paused_is_not_rewound_from_stable_12_on(variant: str, rewound: list[int]) -> None:
    with upstream(variant):
        server = Server()
        batch = server.scheduled_requests()
        paused = server.request(1, [1, 2, 3], py_rewind_len=1)
        batch.generation_requests = [paused]
        seen: list[int] = []
        server.manager.rewind_kv_cache = lambda request, _: seen.append(request.request_id)
        server.manager.update_resources(batch)
        assert seen == rewound
        server.close()
