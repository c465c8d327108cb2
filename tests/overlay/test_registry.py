"""A fix is applied or stands down, and a set of fixes is on as a whole or not at all."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam, State
from trtllm_kvfix.overlay.registry import ApplyError, Registry
from trtllm_kvfix.overlay.seam import SeamError
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import FixSettings, Settings, load

MODULE = "tensorrt_llm.registry_under_test"
LATER = "tensorrt_llm.registry_later"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType(MODULE)
    made.first = lambda: "first"
    made.second = lambda: "second"
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


def fix(
    fix_id: str = "token-budget",
    name: str = "first",
    *,
    state: State = State.NEEDED,
    triggers: tuple[str, ...] = (MODULE,),
    make: Any = lambda found: lambda: "ours " + found(),
) -> Fix:
    def replacements(_upstream: Upstream, _settings: FixSettings) -> Sequence[Replacement]:
        return [Replacement(Seam(MODULE, name), make)]

    return Fix(
        id=fix_id,
        hazard="H0",
        title=fix_id,
        upstream=(),
        triggers=triggers,
        probe=lambda _upstream: Answer(state, f"it is {state.value}"),
        replacements=replacements,
        self_test=lambda: None,
        expected={},
    )


def settings(**section: Any) -> Settings:
    return load(environ={}, section=section)


def test_needed_fix_is_applied_once_and_taken_back(module: Any) -> None:
    original = module.first
    registry = Registry([fix()])
    for _ in range(2):
        assert registry.apply(settings()).applied == ("token-budget",)
        assert module.first() == "ours first"
    assert registry.revert() == []
    assert module.first is original
    assert registry.revert() == []
    assert registry.report().applied == ()


@pytest.mark.parametrize("state", [each for each in State if each is not State.NEEDED])
def test_only_what_is_needed_is_applied(module: Any, state: State) -> None:
    report = Registry([fix(state=state)]).apply(settings())
    assert module.first() == "first"
    assert (report.applied, report.of("token-budget").word) == ((), state.value)
    assert not report.of("token-budget").missing


def test_unknown_is_said_loudly(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    Registry([fix(state=State.UNKNOWN)]).apply(settings())
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "fix token-budget is NOT applied, because its probe cannot tell whether it fits: it is unknown")
    ]
    assert module.first() == "first"


def test_probe_that_raises_is_unknown(module: Any) -> None:
    def probe(_upstream: Upstream) -> Answer:
        raise AttributeError("moved")

    made = Fix(**{**vars(fix()), "probe": probe})
    status = Registry([made]).apply(settings()).of("token-budget")
    assert (status.word, status.reason) == ("unknown", "the probe raised AttributeError: moved")
    assert module.first() == "first"


def test_fix_that_is_off_is_not_applied_but_probed(module: Any) -> None:
    status = Registry([fix()]).apply(settings(fixes={"token-budget": "off"})).of("token-budget")
    assert (module.first(), status.word, status.missing) == ("first", "off", True)


def test_on_insists_where_the_probe_cannot_tell(module: Any) -> None:
    with pytest.raises(
        SettingsError, match=r"kvfix.fixes.token-budget is on, but .*: it is unknown; kvfix.force: true"
    ):
        Registry([fix(state=State.UNKNOWN)]).apply(settings(fixes={"token-budget": "on"}))
    assert module.first() == "first"


def test_on_with_force_applies_and_shouts(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry([fix(state=State.UNKNOWN)])
    assert registry.apply(settings(fixes={"token-budget": "on"}, force=True)).applied == ("token-budget",)
    assert module.first() == "ours first"
    assert [each.levelname for each in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_what_upstream_has_fixed_stands_down_even_when_forced(module: Any, choice: str) -> None:
    registry = Registry([fix(state=State.FIXED_UPSTREAM)])
    assert registry.apply(settings(fixes={"token-budget": choice}, force=True)).applied == ()
    assert module.first() == "first"


def test_one_that_cannot_be_applied_takes_all_back(module: Any) -> None:
    originals = (module.first, module.second)
    registry = Registry([fix(), fix("nixl-listener", "absent.name")])
    with pytest.raises(ApplyError, match=r"fix nixl-listener is needed .*, so none is: .* has no absent.*: off starts"):
        registry.apply(settings())
    assert (module.first, module.second) == originals
    assert registry.report().applied == ()
    without = settings(fixes={"nixl-listener": "off"})
    assert registry.apply(without).applied == ("token-budget",)


def test_one_that_cannot_be_applied_later_takes_earlier_ones_back(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([fix(), fix("nixl-listener", "absent.name", triggers=(LATER,))])
    assert registry.apply(settings()).applied == ("token-budget",)
    monkeypatch.setitem(sys.modules, LATER, ModuleType(LATER))
    with pytest.raises(ApplyError):
        registry.apply(settings())
    assert module.first() == "first"


def test_fix_waits_for_every_trigger_that_this_build_has(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the build does not have is not waited for."""
    existing = {LATER}
    monkeypatch.setattr("trtllm_kvfix.overlay.registry.exists", lambda name: name in existing)
    registry = Registry([fix(triggers=(MODULE, LATER, "tensorrt_llm.in_no_build"))])
    assert registry.apply(settings()).of("token-budget").word == "waiting"
    assert module.first() == "first"
    monkeypatch.setitem(sys.modules, LATER, ModuleType(LATER))
    assert registry.apply(settings()).applied == ("token-budget",)


def test_at_last_a_fix_is_decided_with_what_is_there_and_again_when_more_comes(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = {LATER, "tensorrt_llm.never_imported"}
    monkeypatch.setattr("trtllm_kvfix.overlay.registry.exists", lambda name: name in existing)
    asked = []

    def probe(upstream: Upstream) -> Answer:
        asked.append(upstream.module(LATER) is not None)
        return Answer(State.NEEDED if asked[-1] else State.NOT_APPLICABLE, "")

    made = Fix(**{**vars(fix(triggers=(MODULE, *sorted(existing)))), "probe": probe})
    registry = Registry([made])
    assert registry.apply(settings()).fixes[0].word == "waiting"
    for _ in range(2):
        assert registry.apply(settings(), at_last=True).fixes[0].word == "not-applicable"
    monkeypatch.setitem(sys.modules, LATER, ModuleType(LATER))
    assert registry.apply(settings()).fixes[0].word == "not-applicable"
    assert registry.apply(settings(), at_last=True).applied == ("token-budget",)
    assert asked == [False, True]
    assert module.first() == "ours first"


def test_fix_without_any_trigger_in_this_build_waits() -> None:
    assert Registry([fix(triggers=("tensorrt_llm.in_no_build",))]).apply(settings()).fixes[0].word == "waiting"


def test_other_settings_begin_anew(module: Any) -> None:
    registry = Registry([fix(), fix("nixl-listener", "second")])
    registry.apply(settings())
    registry.apply(settings(fixes={"token-budget": "off"}))
    assert (module.first(), module.second()) == ("first", "ours second")


def test_two_fixes_in_one_seam_are_taken_back_in_turn(module: Any) -> None:
    original = module.first
    registry = Registry([fix(), fix("nixl-listener", make=lambda found: lambda: "outer " + found())])
    registry.apply(settings())
    assert module.first() == "outer ours first"
    assert registry.report().displaced == {}
    assert registry.revert() == []
    assert module.first is original


def test_what_somebody_else_replaced_is_left_and_named(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry([fix()])
    registry.apply(settings())
    theirs = module.first = lambda: "theirs"
    status = registry.report().of("token-budget")
    assert (status.word, list(status.displaced)) == ("displaced", [f"{MODULE}:first"])
    assert "test_registry.<lambda> (" in status.displaced[f"{MODULE}:first"]
    assert registry.revert() == [f"{MODULE}:first"]
    assert module.first is theirs
    assert "was replaced by another tool" in caplog.text


def test_probing_changes_nothing(module: Any) -> None:
    registry = Registry([fix(), fix("nixl-listener", state=State.UNKNOWN)])
    report = registry.probe(settings(), Upstream())
    assert [(each.word, each.missing) for each in report.fixes] == [("needed", True), ("unknown", False)]
    assert module.first() == "first"
    assert registry.report().fixes[0].answer is None


def test_line_for_the_log_has_every_fix_by_what_became_of_it(module: Any) -> None:
    registry = Registry([fix(), fix("nixl-listener", state=State.FIXED_UPSTREAM), fix("concurrent-pins", "second")])
    report = registry.apply(settings())
    assert report.line() == "applied: token-budget, concurrent-pins; fixed-upstream: nixl-listener"
    assert module.second() == "ours second"


def other(name: str, make: Any = lambda found: lambda: "gated " + found()) -> Replacement:
    return Replacement(Seam(MODULE, name), make)


def test_other_replacements_stay_until_everything_is_taken_back(module: Any) -> None:
    """Other settings, and a fix that cannot be applied, take back the fixes alone."""
    originals = dict(vars(module))
    registry = Registry([fix(make=lambda found: lambda: "ours " + found())])
    for _ in range(2):
        registry.install("gate", [other("second")])
        assert module.second() == "gated second"
    registry.apply(settings())
    registry.apply(settings(fixes={"token-budget": "off"}))
    assert (module.first(), module.second()) == ("first", "gated second")
    assert list(registry.report().others) == [f"{MODULE}:second"]
    assert registry.revert() == []
    assert dict(vars(module)) == originals
    assert registry.report().others == {}


def test_other_replacements_are_made_as_a_whole_or_not_at_all(module: Any) -> None:
    registry = Registry()
    with pytest.raises(SeamError, match=f"gate did not change {MODULE}:second"):
        registry.install("gate", [other("first"), other("second", lambda found: found)])
    assert module.first() == "first"
    assert registry.report().others == {}


def test_another_tool_displaces_other_replacements_like_those_of_fixes(module: Any) -> None:
    registry = Registry([fix()])
    registry.apply(settings())
    registry.install("gate", [other("second")])
    ours = module.second
    module.second = lambda: "theirs"
    report = registry.report()
    assert list(report.displaced) == list(report.others_displaced) == [f"{MODULE}:second"]
    module.second = lambda: [ours()]
    assert registry.report().displaced == {}
    module.second = lambda: "theirs"
    assert registry.revert() == [f"{MODULE}:second"]
    assert (module.first(), module.second()) == ("first", "theirs")
