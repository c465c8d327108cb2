"""The listener is off for the adapter's configurations, and for no others."""

from typing import Any

import pytest

from trtllm_kvfix.fixes.nixl_listener.fix import without_listener


class Config:
    def __init__(
        self, enable_prog_thread: bool = True, enable_listen_thread: bool = False, *, backends: tuple[str, ...] = ()
    ) -> None:
        self.prog, self.listen, self.backends = enable_prog_thread, enable_listen_thread, backends


def made_in(module: str, expression: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Config, "__init__", without_listener(("adapter",), Config.__init__))
    return eval(expression, {"__name__": module, "Config": Config})


@pytest.mark.parametrize(
    "call",
    ["Config(enable_listen_thread=True, backends=('UCX',))", "Config(True, True, backends=('UCX',))"],
)
def test_the_adapter_gets_no_listener(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made_in("adapter", call, monkeypatch)
    assert (config.prog, config.listen, config.backends) == (True, False, ("UCX",))


def test_others_get_what_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_in("dynamo", "Config(enable_listen_thread=True)", monkeypatch).listen is True


def test_a_configuration_made_deeper_down_is_not_the_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor's direct caller decides, not that caller's caller."""

    def elsewhere() -> Config:
        return Config(enable_listen_thread=True)

    monkeypatch.setattr(Config, "__init__", without_listener(("adapter",), Config.__init__))
    assert eval("elsewhere().listen", {"__name__": "adapter", "elsewhere": elsewhere}) is True
