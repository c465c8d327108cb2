"""Each scene: wrong without its fix, and right with it; and whose text is named is whose text was read."""

import pytest

from trtllm_kvfix.engine.config import HAZARDS
from trtllm_kvfix.engine.machine import Machine
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.hazards.table import Scene
from trtllm_kvfix.tools.demo.scenes import LOOKS_BACK, SCENES, USERS, choose, from_whom, play, quiet


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.fix)
def test_a_scene_is_wrong_without_its_fix_and_right_with_it(scene: Scene) -> None:
    found = play(scene, "cpu", 0)
    assert found.shown and not found.fixed.wrong
    assert found.control.foreign or any(answer.in_another_voice for answer in found.control.answers)


def test_the_order_is_chosen_so_another_seed_of_the_device_changes_nothing() -> None:
    scene = SCENES[0]
    first, second = play(scene, "cpu", 0), play(scene, "cpu", 7)
    assert first == second


def test_both_arms_of_a_scene_are_played_on_one_schedule_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies between the tiers are late in each step of both arms; only what waits for them differs."""
    held: list[bool] = []  # whether the model's stream waits for the copies
    hold = Machine.hold_copies

    def noted(machine: Machine, stream: int, in_front_of: int | None = None) -> None:
        held.append(in_front_of == machine.stream)
        hold(machine, stream, in_front_of)

    monkeypatch.setattr(Machine, "hold_copies", noted)
    scene = next(scene for scene in SCENES if scene.fix == "transfer-order")
    found = play(scene, "cpu", 0)
    assert (held.count(False), held.count(True)) == (found.control.steps, found.fixed.steps)


def test_every_fix_that_can_change_an_answer_has_its_scene() -> None:
    assert [scene.fix for scene in SCENES] == sorted(HAZARDS, key=[s.fix for s in SCENES].index)
    assert {scene.fix for scene in SCENES} == set(HAZARDS)


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.name)
def test_notes_can_be_asked_about(user: object) -> None:
    """Each question ends in as many letters as the model looks for, and they stand in one place only."""
    mine = next(each for each in USERS if each is user)
    for turn, ask in enumerate(mine.asks):
        assert mine.notes.count(ask[-LOOKS_BACK:]) == 1
        assert quiet(mine.expected(turn)) in mine.notes


def test_whose_text_it_is() -> None:
    ada = USERS[0]
    assert from_whom(ada, "a parrot and the BEST_ROLLS_for me") == "ben"
    assert from_whom(ada, "a parrot called") is None, "her own"
    assert from_whom(ada, "zzzzzzz") is None


def test_scenes_are_chosen_by_fix_and_manager() -> None:
    assert [scene.fix for scene in choose(["graph-inputs=off"], None)] == ["graph-inputs"]
    assert len(choose(["graph-inputs=on"], None)) == len(SCENES) - 1
    assert {scene.config["manager"] for scene in choose([], "one-by-one")} == {"one-by-one"}
    assert "computed-blocks" not in {scene.fix for scene in choose([], "native")}


@pytest.mark.parametrize(
    ("choices", "manager", "message"),
    [
        (["token-budget=off"], None, "token-budget cannot change an answer"),
        (["nonsense=off"], None, "is not a fix"),
        (["graph-inputs"], None, "write ID=off or ID=on"),
        ([f"{fix}=on" for fix in HAZARDS], None, "nothing to show"),
        (["computed-blocks=off"], "native", "needs the manager one-by-one"),
    ],
)
def test_what_cannot_be_shown_is_refused(choices: list[str], manager: str | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        choose(choices, manager)
