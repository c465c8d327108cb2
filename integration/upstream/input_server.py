"""A server whose batches go through upstream's own input preparation."""

import copy
import importlib.util
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream import cuda, graphs, parts
from integration.upstream.engine import Sampler
from integration.upstream.finder import FromTree, Tree
from integration.upstream.inputs import Fallback, InputSampler, NoGraphs, Slots, engine_class
from integration.upstream.judging import Judge
from integration.upstream.loading import EXECUTOR
from integration.upstream.provided import Mapping
from integration.upstream.scheduling import Scheduler
from integration.upstream.server import Outcome, Server, Shape, provided_state

FIRST_DUMMY = 1 << 40
FROM_S = ("_prepare_tp_inputs", "_forward_step")


@dataclass(frozen=True)
class InputShape(Shape):
    draft_len: int = 0  # drafts that the engine computes for each generation
    drafts: int | None = None  # that requests say they have; None: as many
    batches_max: int = 0  # so many batches are enough; 0: any number
    graphs: tuple[int, ...] = ()  # sizes of batches for which CUDA graphs are captured
    warm_up: int = 0  # tokens of the dummies that run before the first request

    @property
    def speculates(self) -> bool:
        return bool(self.draft_len or self.drafts)


class DraftScheduler(Scheduler):
    """It charges nothing for drafts: what a batch comes to is for the overlay and for the engine to judge."""

    def generation_cost(self, request: Any) -> int:
        del request
        return int(self.shape.beams)


class InputServer(Server):
    shape: InputShape
    engine: Judge
    engine_class = Judge

    def _metadata(self) -> Any:
        made = super()._metadata()
        made.__class__ = metadata_class(type(made))
        return made

    def _model_engine(self) -> Any:
        module = import_module(f"{EXECUTOR}.model_engine")
        runner = import_module(f"{EXECUTOR}.cuda_graph_runner").CUDAGraphRunner
        own, older, modules = module.PyTorchModelEngine, None, [module]
        if not hasattr(own, "_prepare_tp_inputs"):
            modules.append(older_module(self.tree))
            older = modules[-1].PyTorchModelEngine
        types = self.resources.ResourceManagerType
        for each in modules:  # no excerpt holds the engine's imports
            names = {"get_draft_token_length": self.llm_request.get_draft_token_length, "ResourceManagerType": types}
            vars(each).update(names)
        self.engine.draft_len, self.engine.speculates = self.shape.draft_len, self.shape.speculates
        key = types.KV_CACHE_MANAGER
        engine = engine_class(own, older)(self.engine, self.engine.attn_metadata, self.shape, key)
        grafted = [f"{name} (S's)" for name in FROM_S] if older else []
        self.tree.lacking["PyTorchModelEngine"] = ["__init__", *grafted, *provided(own, older)]
        is_whole = hasattr(runner, "pad_batch")
        engine.cuda_graph_runner = runner(self._graph_config(engine, key)) if is_whole else NoGraphs()
        return engine

    def _graph_config(self, engine: Any, key: Any) -> Any:
        shape = self.shape
        return SimpleNamespace(
            use_cuda_graph=bool(shape.graphs),
            cuda_graph_padding_enabled=True,
            cuda_graph_batch_sizes=list(shape.graphs),
            max_cuda_graph_batch_size=max(shape.graphs, default=0),
            max_beam_width=shape.beams,
            max_num_tokens=shape.budget,
            spec_config=engine.spec_config,
            cuda_graph_mem_pool=None,
            use_mrope=False,
            original_max_draft_len=shape.draft_len,
            original_max_total_draft_tokens=shape.draft_len,
            is_draft_model=False,
            enable_attention_dp=False,
            batch_size=shape.max_batch_size,
            mapping=Mapping(),
            dist=None,
            kv_cache_manager_key=key,
            sparse_attention_config=None,
        )

    def _managers(self, types: Any) -> dict[Any, Any]:
        return {types.SEQ_SLOT_MANAGER: Slots(self.shape.max_batch_size), **super()._managers(types)}

    def _scheduler(self, states: Any) -> Scheduler:
        return DraftScheduler(self.shape, states)

    def _sampler(self, states: Any) -> Sampler:
        state = provided_state()
        given: dict[str, Any] = {
            "shape": self.shape,
            "plain": parts.SampleStateTensors,
            "drafted": parts.SampleStateTensorsMTP,
        }
        return InputSampler(self.engine, state, parts.SamplerEvent, states, **given)

    def request(self, arrival: Any) -> Any:
        made = super().request(arrival)
        drafts = self.shape.draft_len if self.shape.drafts is None else self.shape.drafts
        made.py_draft_tokens = [0] * drafts
        return made

    def serve(self, arrivals: Any, cancels: Any = None) -> Outcome:
        if self.shape.warm_up:
            self._warm_up()
        return super().serve(arrivals, cancels)

    def _warm_up(self) -> None:
        """Like the engine's own: dummies compute a prompt, others generate, and then their blocks come back."""
        engine, managers = self.executor.model_engine, self.executor.resource_manager
        engine.is_warmup = True
        with cuda.stream(self.stream):
            for ids, is_generating in (((FIRST_DUMMY, FIRST_DUMMY + 1), False), ((FIRST_DUMMY + 2,), True)):
                drafts = {"max_num_draft_tokens": self.shape.draft_len} if is_generating else {}
                tokens = [self.shape.warm_up] * len(ids)
                batch = parts.ScheduledRequests()
                dummies = self.manager.add_dummy_requests(list(ids), tokens, is_generating, **drafts)
                if is_generating:
                    batch.generation_requests = dummies
                else:
                    batch.context_requests = dummies
                for slot, dummy in enumerate(dummies):
                    dummy.py_seq_slot = slot
                engine.forward(batch, managers)
                for dummy in dummies:
                    self.manager.free_resources(dummy)
        self.device.settle()
        engine.is_warmup = False

    def _look(self, outcome: Outcome) -> None:
        dummy = self.executor.model_engine.cuda_graph_runner.padding_dummy_request
        if dummy is not None:
            self.manager.free_resources(dummy)  # upstream keeps it as long as the server runs
        super()._look(outcome)
        wrong = self.engine.wrong_inputs
        outcome.remarks += [f"wrong inputs ({len(wrong)}): {wrong[0]}"] if wrong else []
        if self.shape.graphs and not outcome.died and (dummy is None or not graphs.replayed):
            outcome.remarks.append("no batch was padded, or no graph was replayed")
        count, enough = len(outcome.batches), self.shape.batches_max
        if enough and count > enough:
            outcome.remarks.append(f"{count} batches, where {enough} are enough")


def provided(*kinds: Any) -> list[str]:
    """The methods of ours that an engine runs with, since neither class has them."""
    names = [name for name, value in vars(Fallback).items() if callable(value)]
    return [name for name in names if not any(hasattr(kind, name) for kind in kinds)]


def older_module(tree: Tree) -> Any:
    """The engine of S's excerpts, in a tree whose engine's excerpt does not hold the preparation of inputs."""
    name = f"{EXECUTOR}.older_model_engine"
    path = tree.root.parent / "S" / f"{EXECUTOR}.model_engine".replace(".", "/")
    loader = FromTree(name, f"{path}.py", tree)
    module = importlib.util.module_from_spec(ModuleSpec(name, loader))
    loader.exec_module(module)
    return module


def metadata_class(kind: Any) -> Any:
    """The base class of attention metadata derives this from the lengths of sequences."""

    class Metadata(kind):  # type: ignore[misc]
        @property
        def seq_lens(self) -> Any:
            return self._seq_lens

        @seq_lens.setter
        def seq_lens(self, value: Any) -> None:
            self._seq_lens = value

        seq_lens_kv = seq_lens

        @property
        def num_seqs(self) -> int:
            return len(self._seq_lens)

        def update_spec_dec_param(self, **_: Any) -> None:
            pass

        def create_cuda_graph_metadata(self, rows: int, _: bool = False, drafts: int = 0, buffers: Any = None) -> Any:
            made = copy.copy(self)
            made.is_cuda_graph, made.cuda_graph_buffers = True, buffers
            made.max_num_requests = made.max_num_sequences = rows
            made._seq_lens = torch.ones(rows, dtype=torch.int) * (1 + drafts)
            made.__post_init__()
            return made

    return Metadata
