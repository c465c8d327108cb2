"""The stand-in's server as the executor below a client. Whatever else is to run the clients offers the same methods.

Needs torch for the clients that want its tensors; no GPU.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import trtllm_kvfix
from integration.clients import lent
from integration.clients.clients import LAYERS, TOKENS_PER_BLOCK, Client
from integration.clients.recorded import Calls, record
from tests.standin.fixture import upstream
from tests.standin.serving import Server

DEVICE_BLOCKS = 24
ROW_BLOCKS = 6  # where one runs at a time: the next gets blocks of the one before
WAIT_S, LOOK_S = 20.0, 0.01
QUIET_LOOKS = 60


def copied_out() -> int:
    """Copies from the device to the host that the doubled driver has made."""
    count_of: Any = ctypes.CDLL(None).double_copied_out
    count_of.restype = ctypes.c_ulong
    return int(count_of())


class Executor(Protocol):
    calls: Calls

    def ask(self, request_id: int, prompt: list[int], new: int, salt: int | None = None, adapter: int | None = None) \
        -> list[int]: ...  # fmt: skip

    def forget(self) -> None:
        """What the device keeps for reuse is gone."""

    def corrupt(self) -> list[int]:
        """Requests whose attention has read something else than what was computed for their tokens."""

    def held(self) -> dict[str, int]:
        """What is still held of requests that have been answered, by whom."""


class StandIn:
    def __init__(
        self, client: Client, config: dict[str, str], folder: Path, calls: Calls, *, one_at_a_time: bool
    ) -> None:
        self.client, self.calls = client, calls
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
            }
        )
        self._asked: list[int] = []

    @property
    def scheduler(self) -> Any:
        return self.server.executor.kv_connector_manager.scheduler

    def wait_until(self, what: str, holds: Any) -> None:
        for _ in range(int(WAIT_S / LOOK_S)):
            if holds():
                return
            threading.Event().wait(LOOK_S)
        raise TimeoutError(f"{what}: not within {WAIT_S} s; held are {self.held()}")

    def is_up(self) -> bool:
        """KVBM's leader goes on with its start when the constructor has returned, and panics when it is asked early."""
        try:
            self.client.entries(self.scheduler, 0)
        except BaseException as panic:
            if type(panic).__name__ != "PanicException":
                raise
            return False
        return True

    def ask(
        self, request_id: int, prompt: list[int], new: int, salt: int | None = None, adapter: int | None = None
    ) -> list[int]:
        copied = copied_out() if self.client.saves_untold else 0
        request = self.server.request(request_id, prompt, new, cache_salt_id=salt, lora_task_id=adapter)
        (response,) = self.server.run([request])
        assert response.error_msg is None, response.error_msg
        self._asked.append(request_id)
        self.wait_until(f"the end of request {request_id}", self._is_idle)
        if self.client.saves_untold:
            known = next(call[3] for call in self.calls if call[:2] == ("match", request_id))
            self._wait_for_saves(copied, 0 if known else (len(prompt) + new - 1) // TOKENS_PER_BLOCK)
        tokens: list[int] = response.tokens
        return tokens

    def _wait_for_saves(self, before: int, blocks: int) -> None:
        """Nothing says when such a save is over but that the driver has copied, and copies nothing more for a while."""
        self.wait_until(f"a copy of {blocks} blocks", lambda: copied_out() >= before + blocks)
        copied, looks = copied_out(), 0
        while looks < QUIET_LOOKS:
            threading.Event().wait(LOOK_S)
            last, copied = copied, copied_out()
            looks = looks + 1 if copied == last else 0

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

    def held(self) -> dict[str, int]:
        manager = self.server.executor.kv_connector_manager
        lists = (manager.new_async_requests, manager.pending_async_requests, manager.local_finished_async_requests)
        return {
            "client": sum(self.client.entries(self.scheduler, request_id) for request_id in self._asked),
            "manager": sum(len(each.saving) + len(each.loading) for each in lists),
            "device": self.server.manager.get_kv_cache_stats().used_num_blocks,
        }


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
