"""The stand-in's server as the executor below a client.

Needs torch for the clients that want its tensors; no GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import trtllm_kvfix
from integration.clients import lent
from integration.clients.clients import LAYERS, TOKENS_PER_BLOCK, Client
from integration.clients.executor import WAIT_S, Executor
from integration.clients.recorded import Calls, record
from tests.standin.fixture import upstream
from tests.standin.serving import Server

DEVICE_BLOCKS = 24
ROW_BLOCKS = 6  # where one runs at a time: the next gets blocks of the one before


class StandIn(Executor):
    def __init__(
        self, client: Client, config: dict[str, str], folder: Path, calls: Calls, *, one_at_a_time: bool
    ) -> None:
        super().__init__(client, calls)
        self.server = Server(
            {
                "model": str(folder),
                "num_layers": LAYERS,
                "max_seq_len": 64,
                "max_batch_size": 1 if one_at_a_time else 8,
                "kv_cache_config": {
                    "tokens_per_block": TOKENS_PER_BLOCK,
                    "max_tokens": (ROW_BLOCKS if one_at_a_time else DEVICE_BLOCKS) * TOKENS_PER_BLOCK,
                },
                "kv_connector_config": config,
            },
            response_s_max=WAIT_S,
        )
        self.manager = self.server.executor.kv_connector_manager

    def serve(self, request_id: int, prompt: list[int], new: int, salt: int | None, adapter: int | None) -> list[int]:
        request = self.server.request(request_id, prompt, new, cache_salt_id=salt, lora_task_id=adapter)
        (response,) = self.server.run([request])
        assert response.error_msg is None, response.error_msg
        self.wait_until(f"the end of request {request_id}", self._is_idle)
        tokens: list[int] = response.tokens
        return tokens

    def _is_idle(self) -> bool:
        """No step is in flight, and no blocks are kept for a save."""
        executor = self.server.executor
        return executor.previous_batch is None and not executor.async_transfer_manager.requests_in_transfer()

    def ask_in_a_row(self, requests: list[tuple[int, list[int], int]], held_step: int) -> None:
        """One runs at a time, the next begins while the last step of the one before is in flight. The device is held in
        front of what that step, `held_step`, writes until the host has given it the step behind it, or waits for it."""
        pauses, tensors = self.server.pauses, self.server.tensors
        steps, gates, waits = count(1), list[int](), list[str]()

        def let_go() -> None:
            if gates:
                tensors.open_gate(gates.pop())

        def compute() -> None:
            let_go()
            if next(steps) == held_step:
                gates.append(tensors.close_gate(tensors.current_stream()))

        def wait_for_sample() -> None:
            if gates:
                waits.append("the first is for the step before")
            if len(waits) > 1:
                let_go()

        with (
            pauses.at(pauses.COMPUTE, compute),
            pauses.at(pauses.WAIT_FOR_SAMPLE, wait_for_sample),
            pauses.at(pauses.CALL_SCHEDULE, self.forget),
        ):
            self.server.run([self.server.request(*request) for request in requests])
            self.wait_until("the end of the row", self._is_idle)

    def forget(self) -> None:
        bound = self.server.manager.impl
        getattr(bound, "native", bound).reset_reuse_state()

    def corrupt(self) -> list[int]:
        self.server.executor.contents.judge()
        return list(self.server.executor.contents.corrupt)

    def device_blocks(self) -> int:
        return int(self.server.manager.get_kv_cache_stats().used_num_blocks)


@contextmanager
def running(
    client: Client, variant: str, folder: Path, *, overlay: bool, one_at_a_time: bool = False
) -> Iterator[StandIn]:
    """`overlay`: as a program asks for it, before anything of TensorRT-LLM is imported. `one_at_a_time`: batches
    of one request."""
    with upstream(variant):
        if overlay:
            trtllm_kvfix.enable()
        executor = make(client, variant, folder, one_at_a_time=one_at_a_time)
        try:
            yield executor
        finally:
            executor.server.executor.shutdown()


def make(client: Client, variant: str, folder: Path, *, one_at_a_time: bool) -> StandIn:
    calls: Calls = []
    if variant in {"B", "C"}:
        lent.lend()
    pool_for: Any = lambda pool: pool  # noqa: E731  the client's own, where it wants torch's
    if client.wants_torch:
        from integration.clients import torch_double  # noqa: PLC0415  ours runs without torch

        torch_double.install(import_module("tensorrt_llm._standin.tensors").tensors())
        kind = torch_double.OnDevice if client.asks_for_gpu else None
        pool_for = lambda pool: torch_double.as_torch(pool, kind)  # noqa: E731
    module = import_module(client.module)
    if variant in {"B", "C"}:
        lent.lend_hashes(module, client.scheduler_class)
    record(module, client.scheduler_class, client.worker_class, calls, pool_for)
    presets = variant in {"D", "F"}
    executor = StandIn(client, client.config(presets=presets), folder, calls, one_at_a_time=one_at_a_time)
    executor.wait_until("the client's start", executor.is_up)
    return executor
