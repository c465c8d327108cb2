"""The stand-in with some fixes applied to it, and the rest off."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module

from tests.standin.fixture import upstream
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import CONNECTOR_PLACES, Upstream
from trtllm_kvfix.sections import FixChoices, Settings

CREATOR = "tensorrt_llm._torch.pyexecutor.py_executor_creator"


def only(*ids: str, **more: object) -> Settings:
    """Settings under which no other fix is applied."""
    chosen = {name: "on" if name in ids else "off" for name in FIX_IDS}
    return Settings(fixes=FixChoices.model_validate(chosen), **more)  # type: ignore[arg-type]


@contextmanager
def standing_in(variant: str, *, nixl: bool = False) -> Iterator[None]:
    """The stand-in with everything imported that an executor needs."""
    with upstream(variant, nixl=nixl):
        import_module(CREATOR)
        for place in CONNECTOR_PLACES:  # upstream's loop imports it, wherever it is
            with suppress(ModuleNotFoundError):
                import_module(place)
        yield


@contextmanager
def applied(ids: Sequence[str]) -> Iterator[Registry]:
    """Runs inside `standing_in`. The fixes that it applies are reverted at the end."""
    registry = Registry(ALL)
    report = registry.apply(only(*ids), Upstream(), at_last=True)
    assert set(report.applied) == set(ids), report.line()
    try:
        yield registry
    finally:
        assert registry.revert() == []
