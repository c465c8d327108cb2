"""Our manager replaces upstream's where it should, and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.applied import standing_in
from tests.managers.making import keywords
from trtllm_kvfix import fixes, native
from trtllm_kvfix.errors import NotServed, SettingsError
from trtllm_kvfix.managers import constructors
from trtllm_kvfix.managers.capacity import GuaranteedNoEvict
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.overlay import start_gate
from trtllm_kvfix.overlay.activation import Activation
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import CREATOR, PY_EXECUTOR, RESOURCE_MANAGER
from trtllm_kvfix.sections import NEEDLESS_WITH_NATIVE
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import on_stream


@contextmanager
def active(variant: str, **settings: Any) -> Iterator[Activation]:
    with standing_in(variant):
        made = Activation(Registry(fixes.ALL), (start_gate, *constructors.ALL), constructors.objection)
        made.activate(Settings(**settings))
        try:
            yield made
        finally:
            assert made.deactivate() == []
            assert isinstance(constructor(), type), "upstream's class is back"


def constructor() -> Any:
    return import_module(RESOURCE_MANAGER).KVCacheManagerCpp


@pytest.fixture
def place() -> Iterator[int]:
    device = native.open_device("cpu")
    stream = device.create_stream()
    with on_stream(device, stream):
        yield stream


def era() -> Any:
    return SimpleNamespace(
        DataType=import_module("tensorrt_llm.bindings").DataType,
        CacheType=import_module("tensorrt_llm.bindings.internal.batch_manager").CacheType,
    )


@pytest.mark.parametrize("variant", ["B", "D"])
def test_ours_is_made_where_it_is_asked_for(variant: str, place: int) -> None:
    with active(variant, manager="native"):
        impl = constructor()(**keywords(era(), stream=place))
        assert isinstance(impl, NativeKvCache)
        policy = SimpleNamespace(name="GUARANTEED_NO_EVICT")
        made = import_module(CREATOR).BindCapacityScheduler(4, impl, None, policy)
        assert isinstance(made, GuaranteedNoEvict)
        assert constructor().add_token is not None, "attributes are those of the bound class"


@pytest.mark.parametrize("variant", ["B", "D"])
def test_upstream_is_left_alone_where_it_is_not(variant: str) -> None:
    with active(variant) as made:
        assert isinstance(constructor(), type)
        made.activate(Settings(manager="native"))
        assert isinstance(constructor(), constructors.Substitute)
        made.activate(Settings())
        bound = import_module(CREATOR).BindCapacityScheduler(4, object())
        assert not isinstance(bound, GuaranteedNoEvict)


@pytest.mark.parametrize(
    ("variant", "reason"), [("A", "of 1.1"), ("B2", "early spring"), ("C", "spring 2026"), ("F", "variant F")]
)
def test_builds_that_ours_was_never_run_with_are_refused(variant: str, reason: str) -> None:
    with active(variant, manager="native"), pytest.raises(NotServed, match=reason):
        constructor()(**keywords(era()))


def test_fixes_of_the_bound_manager_stand_down() -> None:
    with active("B", manager="native") as made:
        choices = {each.id: each.choice for each in made.registry.report().fixes}
    assert {name for name, choice in choices.items() if choice == "off"} == set(NEEDLESS_WITH_NATIVE)


class Engine(SimpleNamespace):
    """Can be referred to weakly, as upstream's can."""


def engine(**changes: Any) -> Any:
    """An executor over ours that nothing speaks against."""
    impl = object.__new__(NativeKvCache)
    found = {
        "kv_cache_manager": SimpleNamespace(impl=impl),
        "kv_cache_transceiver": None,
        "kv_connector_manager": None,
        "drafter": None,
        "draft_model_engine": None,
        "model_engine": SimpleNamespace(spec_config=None, llm_args=SimpleNamespace()),
        "dist": SimpleNamespace(pp_size=1, cp_size=1),
        "enable_attention_dp": False,
        "scheduler": SimpleNamespace(capacity_scheduler=object()),
    }
    return Engine(**(found | changes))


class BindCapacityScheduler:
    pass


class ADEngine(SimpleNamespace):
    __module__ = "tensorrt_llm._torch.auto_deploy.shim.ad_executor"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_cache_manager": SimpleNamespace(impl=object())}, "this engine's cache is"),
        ({"model_engine": ADEngine()}, "AutoDeploy"),
        ({"kv_cache_transceiver": object()}, "disaggregated"),
        ({"drafter": object()}, "speculative"),
        ({"model_engine": SimpleNamespace(spec_config=object())}, "speculative"),
        ({"draft_model_engine": object()}, "a draft model"),
        ({"dist": SimpleNamespace(pp_size=2, cp_size=1)}, "pipelines"),
        ({"dist": SimpleNamespace(pp_size=1, cp_size=2)}, "context parallelism"),
        ({"enable_attention_dp": True}, "attention data"),
        ({"model_engine": SimpleNamespace(llm_args=SimpleNamespace(sleep_config=object()))}, "sleeping"),
        ({"model_engine": SimpleNamespace(llm_args=SimpleNamespace(enable_sleep=True))}, "sleeping"),
        ({"virtual_memory_pools": {"kv_cache": object()}}, "sleeping"),
        ({"scheduler": SimpleNamespace(capacity_scheduler=BindCapacityScheduler())}, "bound capacity scheduler"),
    ],
)
def test_an_engine_that_cannot_be_served_is_refused_before_it_starts(changes: dict[str, Any], reason: str) -> None:
    asked = Settings(manager="native")
    assert constructors.objection(asked, engine()) == ""
    assert reason in constructors.objection(asked, engine(**changes))
    assert constructors.objection(Settings(), engine(**changes)) == ""


def test_a_rule_of_the_native_managers_host_tier_is_refused_with_upstreams() -> None:
    asked = {"native_host_admission": "adaptive"}
    said = constructors.objection(Settings.model_validate(asked), engine())
    assert said.startswith("kvfix.native_host_admission: adaptive: TensorRT-LLM's own manager has no such")
    assert constructors.objection(Settings.model_validate(asked | {"manager": "native"}), engine()) == ""


def test_the_gate_asks() -> None:
    """A V2 engine, to which the setting would say nothing."""
    with active("D", manager="native"):
        start = import_module(PY_EXECUTOR).PyExecutor.start_worker
        with pytest.raises(SettingsError, match="ours replaces V1's bound one only"):
            start(engine(kv_cache_manager=SimpleNamespace(impl=None)))
