"""Engines whose arguments may make blocks differ have other names for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from tests.offload import conftest
from tests.offload.test_weights import BEHIND
from tests.standin.fixture import upstream
from trtllm_kvfix.offload.remote.keys import (
    IRRELEVANT,
    IRRELEVANT_OF_CACHE,
    Unnameable,
    arguments_of,
    parts_of,
    root_of,
    spelled,
)
from trtllm_kvfix.offload_section import RemoteSettings

from .conftest import MakeRemote
from .test_eras import serve


class LoadFormat(Enum):
    AUTO = 0
    DUMMY = 1


class Nested(BaseModel):
    backend: str = "CUTLASS"
    layers: dict[int, str] = {}


@dataclass
class QuantConfig:
    algo: str | None = None


class Loader:
    """One of a user's own."""

    def __init__(self, **state: Any) -> None:
        self.__dict__ |= state


class UpstreamLoader(Loader):
    __module__ = "tensorrt_llm._torch.models.checkpoints"


class Slotted:
    __slots__ = ("path",)

    def __repr__(self) -> str:
        return "Slotted()"


class UpstreamMapper(Loader):
    __module__ = "tensorrt_llm._torch.models.checkpoints"


def args(cache: Mapping[str, Any] = MappingProxyType({}), /, **more: Any) -> Any:
    return SimpleNamespace(kv_cache_config=SimpleNamespace(**{"tokens_per_block": 32} | dict(cache)), **more)


def root(llm_args: Any) -> bytes:
    return root_of(parts_of(llm_args, RemoteSettings(model="the same on all nodes")))


def kind(value: object) -> str:
    """The name of a case. All processes that share the tests must give it the same one, so it has no address."""
    return type(value).__name__ if " at 0x" in str(value) else str(value)


@pytest.mark.parametrize(
    "argument",
    ["load_format", "checkpoint_format", "model_kwargs", "attn_backend", "allreduce_strategy", "of_tomorrow"],
)
def test_what_may_change_blocks_separates_engines(argument: str) -> None:
    assert len({root(args(**given)) for given in ({}, {argument: "one"}, {argument: "two"})}) == 3


@pytest.mark.parametrize("argument", ["dtype", "tokens_per_block", "max_attention_window", "of_tomorrow"])
def test_so_do_arguments_of_the_cache(argument: str) -> None:
    assert root(args({argument: "one"})) != root(args({argument: "two"}))
    assert root(args({"dtype": "one"})) != root(args(dtype="one"))


@pytest.mark.parametrize(("irrelevant", "of_cache"), [(IRRELEVANT, False), (IRRELEVANT_OF_CACHE, True)])
def test_what_does_not_change_them_does_not(irrelevant: dict[str, tuple[str, ...]], of_cache: bool) -> None:
    names = [name for names in irrelevant.values() for name in names if name != "kv_cache_config"]
    assert len(names) == len(set(names))
    for name in names:
        one, other = ({name: value} for value in (object(), "another"))
        assert (root(args(one)) == root(args(other))) if of_cache else (root(args(**one)) == root(args(**other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LoadFormat.AUTO, LoadFormat.DUMMY), (LoadFormat.AUTO, 0), (Nested(), Nested(backend="TRTLLM")),
        (Nested(layers={1: "a"}), Nested(layers={1: "b"})), (QuantConfig(), QuantConfig("FP8")), ("1", 1), (1, 1.0),
        ([1, 2], [2, 1]), ([1, [2]], [[1], 2]), (Path("a"), Path("b")), (Loader, Nested), (True, 1), ({1: 2}, {2: 1}),
        (UpstreamLoader(format="HF"), UpstreamLoader(format="MX")), (UpstreamLoader(), UpstreamMapper()),
        (UpstreamLoader(mapper=UpstreamMapper()), UpstreamLoader(mapper=UpstreamLoader())),
    ],
    ids=kind,
)  # fmt: skip
def test_values_that_differ_are_spelled_differently(one: Any, other: Any) -> None:
    assert spelled(one, "it") != spelled(other, "it")


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"b": {3, 1, 2}, "a": frozenset({"x", "y"})}, lambda: Nested(layers={2: "b", 1: "a"}),
        lambda: QuantConfig("FP8"), lambda: UpstreamLoader(mapper=UpstreamMapper(state=object()), format="HF"),
        lambda: (LoadFormat.DUMMY, Path("a"), b"x", None, 1.5), lambda: range(3),
    ],
)  # fmt: skip
def test_equal_values_are_spelled_alike(make: Callable[[], Any]) -> None:
    assert spelled(make(), "it") == spelled(make(), "it")
    assert " at 0x" not in spelled(make(), "it")


def test_the_order_of_a_mapping_says_nothing() -> None:
    assert spelled({"a": 1, "b": 2}, "it") == spelled({"b": 2, "a": 1}, "it")


def local() -> Any:
    class Local(BaseModel):
        layers: int = 1

    return Local()


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Slotted(),
        Loader(),
        Loader(path="a"),
        UpstreamLoader(weights=Loader()),
        [Loader()],
        {"a": Loader()},
        local(),
    ],
    ids=kind,
)
def test_what_cannot_be_named_is_refused_by_its_argument(value: Any) -> None:
    with pytest.raises(Unnameable, match="checkpoint_loader"):
        arguments_of(args(checkpoint_loader=value))


@pytest.mark.parametrize("variant", ["A", "B", "C", "D", "F"])
def test_the_arguments_of_each_build_have_a_name(variant: str) -> None:
    """Dummy weights, which benchmarks have, are another model's."""
    with upstream(variant):
        from tensorrt_llm.llmapi.llm_args import TorchLlmArgs  # noqa: PLC0415

        made = TorchLlmArgs(model="m")
        assert root(made) == root(TorchLlmArgs(model="m", max_batch_size=3))
        assert root(made) != root(TorchLlmArgs(model="m", load_format="dummy"))
        assert root(made) != root(TorchLlmArgs(model="m", tensor_parallel_size=2))


def with_arguments(monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    made = conftest.llm_args
    monkeypatch.setattr(conftest, "llm_args", lambda: SimpleNamespace(**vars(made()) | given))


def test_an_engine_with_dummy_weights_shares_nothing(make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    production = make_remote()
    with monkeypatch.context() as patch:
        with_arguments(patch, load_format=LoadFormat.DUMMY)
        benchmark, another = make_remote(), make_remote()
    benchmark.executor.weights = another.executor.weights = 7
    serve(benchmark, 1)
    assert serve(production, 1) == 0
    assert serve(another, 1) == BEHIND
    for bench in (production, benchmark, another):
        assert bench.executor.corrupt == []


def test_without_a_name_there_is_no_remote_tier_and_the_log_says_why(
    make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_arguments(monkeypatch, checkpoint_loader=Loader())
    bench = make_remote()
    assert bench.worker.side.carrier.porter is None and bench.scheduler.side._link.store is None
    assert "no remote tier" in caplog.text and "checkpoint_loader is an object of" in caplog.text
    assert serve(bench, 1) == 0 and serve(bench, 2) == BEHIND, "the host tier is there"
