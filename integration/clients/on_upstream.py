"""Upstream's own loop, managers and connector manager below a client: the trees of `integration/upstream`.

The rig's simulated device is late; the clients' copies are made by the host, by KVBM's threads behind an event, by
LMCache's fallback for CPUs inside `torch.cuda.stream`. So for them alone an event is done when it is recorded, and a
stream has run when it is entered, as on the stand-in. The model is ours: it writes each token's value into the pool
that the client registered, and reads back what lies there for the tokens before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from integration.clients import lent
from integration.clients.clients import LAYERS, TOKENS_PER_BLOCK, Client
from integration.clients.executor import LOOK_S, WAIT_S, Executor
from integration.clients.recorded import Calls, record
from integration.clients.torch_double import OnDevice
from integration.upstream import cuda, late, server
from integration.upstream.arrivals import Queue
from integration.upstream.connectors import connector_module
from integration.upstream.contents import prefix_names
from integration.upstream.engine import Batch, Engine
from integration.upstream.finder import PACKAGE, Tree
from integration.upstream.late import LateDevice
from integration.upstream.loading import EXECUTOR
from integration.upstream.overlaying import overlay as overlay_of
from integration.upstream.parts import RequestQueueItem
from integration.upstream.server import Server, Shape, upstream

DEVICE_BLOCKS = 24
SHAPE = Shape(tokens_per_block=TOKENS_PER_BLOCK, layers=LAYERS, blocks=DEVICE_BLOCKS, max_batch_size=8)


class Event(cuda.Event):
    """Done as soon as it is recorded."""

    @property
    def cuda_event(self) -> int:
        return id(self)

    def record(self, stream: Any = None) -> None:
        late.late().settle((stream or cuda.current_stream()).cuda_stream)
        super().record(stream)


@contextmanager
def inside(stream: Any) -> Iterator[None]:
    stream.synchronize()
    with cuda.stream(stream):
        yield


@contextmanager
def of_client() -> Iterator[None]:
    """Makes torch.cuda the client's while one of its methods runs."""
    with mock.patch.object(torch.cuda, "Event", Event), mock.patch.object(torch.cuda, "stream", inside):
        yield


class Layer:
    """A decoder layer with the hooks that upstream registers."""

    def __init__(self, layer_idx: int) -> None:
        self.layer_idx = layer_idx
        self._before: list[Any] = []
        self._behind: list[Any] = []

    def register_forward_pre_hook(self, hook: Any) -> None:
        self._before.append(hook)

    def register_forward_hook(self, hook: Any) -> None:
        self._behind.append(hook)

    def forward(self) -> None:
        for hook in self._before + self._behind:
            hook(self)


class Model(Engine):
    """Its values lie in the pool itself, one number a token, the same in every layer's keys and values."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.layers = [Layer(index) for index in range(LAYERS)]
        self.model = SimpleNamespace(named_modules=lambda: [(f"layers.{each.layer_idx}", each) for each in self.layers])
        self.adapters: dict[int, int] = {}  # by request
        self.misread: list[int] = []
        self.pool: Any = None

    def forward(self, scheduled: Any, _resources: Any, *given: Any, **named: Any) -> dict[str, Any]:
        outputs = super().forward(scheduled, _resources, *given, **named)
        batch: Batch = outputs["batch"]
        late.late().launch(cuda.current_stream().cuda_stream, lambda: self._compute(batch))
        for layer in self.layers:
            layer.forward()
        return outputs

    def _compute(self, batch: Batch) -> None:
        """Runs when the device gets there. `wrong_rows` says whether the offsets were those of the books then."""
        for step in batch.steps:
            values = [hash((name, self.adapters.get(step.request_id))) % 2**31 for name in prefix_names(step.tokens)]
            slots = [offset // (LAYERS * 2) for offset in batch.expected[0, batch.rows[step.request_id]]]
            for position in range(step.begin, step.end):
                self._at(slots, position)[:] = values[position]
            if any((self._at(slots, position) != values[position]).any() for position in range(step.begin)):
                self.misread.append(step.request_id)

    def _at(self, slots: list[int], position: int) -> Any:
        block, offset = divmod(position, TOKENS_PER_BLOCK)
        return self.pool[slots[block], :, :, offset]

    def ran(self, batch: Batch) -> None:
        """The values are compared when they are read; the rig's own books of contents know of no loads."""
        self.rows_read(batch)


class Turns(Queue):
    """Sends one request, and then the end, as soon as no request is active and nothing is being saved."""

    def __init__(self, server: Server, request: Any) -> None:
        super().__init__(server, [], {})
        self._coming = [RequestQueueItem(id=request.py_request_id, request=request)]
        self._looks = 0

    def get_from_request_queue(self, _: Any) -> list[Any]:
        self.server.device.hold()
        coming, self._coming = self._coming, []
        if coming:
            return coming
        active, saving = self.server.executor.active_requests, self._is_saving()
        if not active and not saving:
            self.server.device.settle()
            return [RequestQueueItem(id=-1, is_shutdown_request=True)]
        if saving or any("TRANS" in str(each.state) for each in active):
            self._wait_for_client()
        return []

    def _wait_for_client(self) -> None:
        self._looks += 1
        if self._looks > WAIT_S / LOOK_S:
            raise TimeoutError(f"a load or a save is not over within {WAIT_S} s")
        self.server.device.settle()  # nothing else keeps it from going on
        self.pause.wait(LOOK_S)


class ClientServer(Server):
    def __init__(self, tree: Tree, device: LateDevice, connector: Any) -> None:
        vars(import_module(f"{EXECUTOR}.py_executor"))["DecoderLayer"] = Layer
        with mock.patch.object(server, "Engine", Model):
            super().__init__(tree, device, SHAPE, connector)
        model: Any = self.engine
        model.pool = late.plain(self.manager.get_unique_primary_pool()).view(torch.int32)

    def asked(self, request_id: int, prompt: list[int], new: int, salt: int | None, adapter: int | None) -> Any:
        made = self.llm_request.LlmRequest(
            request_id=request_id,
            max_new_tokens=new,
            input_tokens=prompt,
            sampling_config=self.batch_manager.SamplingConfig(1),
            is_streaming=False,
            lora_task_id=adapter,
            cache_salt_id=salt,
        )
        made.py_forwarded, made.py_beam_width = 0, 1
        return made


class OnUpstream(Executor):
    def __init__(self, client: Client, calls: Calls, tree: Tree, device: LateDevice, manager: Any) -> None:
        super().__init__(client, calls)
        self.manager = manager
        self.server = ClientServer(tree, device, manager)

    @property
    def model(self) -> Any:
        return self.server.engine

    def serve(self, request_id: int, prompt: list[int], new: int, salt: int | None, adapter: int | None) -> list[int]:
        request = self.server.asked(request_id, prompt, new, salt, adapter)
        if adapter is not None:
            self.model.adapters[request_id] = adapter
        executor = self.server.executor
        executor.executor_request_queue = Turns(self.server, request)
        executor.is_shutdown = False
        executor.event_loop()
        self.server.device.settle()
        errors = [each.error_msg for each in executor.responses[request_id] if each.error_msg]
        assert not errors, errors
        tokens: list[int] = list(request.get_tokens(0))[len(prompt) :]
        return tokens

    def forget(self) -> None:
        """The values go, too: who gets the same blocks next would find there what a load ought to bring."""
        self.server.manager.impl.reset_reuse_state()
        self.model.pool.zero_()

    def corrupt(self) -> list[int]:
        wrong = self.model.findings.wrong_rows
        assert not wrong, wrong
        return list(self.model.misread)

    def device_blocks(self) -> int:
        return DEVICE_BLOCKS - int(self.server.manager.impl.witness_free(SHAPE.max_seq_len))


def surround(module: Any, name: str) -> None:
    """The client's methods see the torch.cuda that its copies need."""
    base = getattr(module, name)

    def within(method: Any) -> Any:
        def called(*given: Any, **named: Any) -> Any:
            with of_client():
                return method(*given, **named)

        return called

    methods = {key: within(value) for key, value in vars(base).items() if isfunction(value)}
    setattr(module, name, type(name, (base,), methods))


def arguments(folder: Path) -> Any:
    """The fields of upstream's `TorchLlmArgs` that the clients read."""
    mapping = SimpleNamespace(rank=0, world_size=1)
    return SimpleNamespace(
        model=str(folder),
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        parallel_config=SimpleNamespace(to_mapping=lambda: mapping),
        kv_cache_config=SimpleNamespace(
            tokens_per_block=TOKENS_PER_BLOCK,
            enable_block_reuse=True,
            max_attention_window=None,
            host_cache_size=None,
            dtype="auto",
        ),
        max_seq_len=SHAPE.max_seq_len,
        speculative_config=None,
        enable_attention_dp=False,
    )


def connected(client: Client, tree: Tree, folder: Path, calls: Calls) -> Any:
    """Upstream's connector manager above the client."""
    connector: Any = connector_module(tree)
    if connector.__name__ == lent.OLD:
        lent.move(connector)
    vars(import_module(PACKAGE)).update(mpi_rank=lambda: 0, __version__=f"{tree.root.name}'s")
    module = import_module(client.module)
    pool_for: Any = lambda pool: pool  # noqa: E731  the client's own, where it wants numbers of four bytes
    if client.wants_torch:
        kind = OnDevice if client.asks_for_gpu else torch.Tensor
        pool_for = lambda pool: late.plain(pool).view(torch.float32).as_subclass(kind)  # noqa: E731
        lent.lend_hashes(module, client.scheduler_class)
        for name in (client.scheduler_class, client.worker_class):
            surround(module, name)
    record(module, client.scheduler_class, client.worker_class, calls, pool_for)
    args = arguments(folder)
    worker, scheduler = (getattr(module, name)(args) for name in (client.worker_class, client.scheduler_class))
    return connector.KvCacheConnectorManager(worker, scheduler)


@contextmanager
def running(client: Client, root: Path, era: str, folder: Path, *, overlay: bool) -> Iterator[OnUpstream]:
    with upstream(root, era) as (tree, device, _), overlay_of(overlay, {}):
        calls: Calls = []
        executor = OnUpstream(client, calls, tree, device, connected(client, tree, folder, calls))
        executor.wait_until("the client's start", executor.is_up)
        yield executor
