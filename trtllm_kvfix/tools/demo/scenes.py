"""One scene for each fix that can change an answer: the chat without it, where the order matters, and with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtllm_kvfix.engine.config import HAZARDS, EngineConfig, check_id
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.hazards import table
from trtllm_kvfix.tools.demo.chat import Answer
from trtllm_kvfix.tools.demo.outcome import AnswerRead, Arm, SceneOutcome
from trtllm_kvfix.tools.demo.session import Session


@dataclass(frozen=True)
class Scene:
    fix: str
    title: str
    without: str  # what goes wrong
    config: EngineConfig  # with all fixes on


SCENES = tuple(
    Scene(each.fix, each.title, each.without, EngineConfig(late_every=1, **each.config))
    for each in (hazard.scene for hazard in table.HAZARDS)
    if each is not None
)


def choose(choices: Sequence[str], manager: str | None) -> list[Scene]:
    """choices: `ID=off` shows only what is lost without that fix, `ID=on` leaves its scene out."""
    off: set[str] = set()
    on: set[str] = set()
    for choice in choices:
        fix, _, word = choice.partition("=")
        if word not in ("off", "on"):
            raise SettingsError(f"--fix is '{choice}'; write ID=off or ID=on, with an ID of {', '.join(HAZARDS)}")
        check_id(fix)
        (off if word == "off" else on).add(fix)
    wanted = (off or set(HAZARDS)) - on
    if not wanted:
        raise SettingsError("--fix: every fix is on, so there is nothing to show")
    scenes = [scene for scene in SCENES if scene.fix in wanted]
    if manager is None:
        return scenes
    if off:
        for scene in scenes:
            _racy(replace(scene, config=replace(scene.config, manager=manager)))
    # If a manager cannot make a scene's mistake, it is an error only to ask for that scene.
    return [
        replace(scene, config=replace(scene.config, manager=manager))
        for scene in scenes
        if not (scene.fix == "computed-blocks" and manager == "native")
    ]


def play(scene: Scene, device: str, seed: int) -> SceneOutcome:
    return SceneOutcome(
        fix=scene.fix,
        hazard=HAZARDS[scene.fix],
        title=scene.title,
        without=scene.without,
        manager=scene.config.manager,
        control=_arm(_racy(scene), device, seed),
        fixed=_arm(scene.config, device, seed),
    )


def _racy(scene: Scene) -> EngineConfig:
    return replace(scene.config, off=frozenset((scene.fix,)))


def _arm(config: EngineConfig, device: str, seed: int) -> Arm:
    machine = open_machine(device, seed=seed)
    session = Session(machine, config)
    try:
        answers = session.run()
        counts, stats = session.engine.scheduler.counts, session.engine.cache.core.get_kv_cache_stats().total
        return Arm(
            answers=[_read(answer) for answer in answers],
            steps=session.engine.steps,
            preemptions=counts.preemptions,
            tokens_computed=counts.tokens_computed,
            tokens_reused=stats.tokens_reused,
            blocks_onboarded=stats.blocks_onboarded,
        )
    finally:
        session.close()
        machine.close()


def _read(answer: Answer) -> AnswerRead:
    return AnswerRead(
        user=answer.user,
        turn=answer.turn + 1,
        asked=answer.asked,
        expected=answer.expected,
        read=answer.read,
        right=answer.right,
        from_whom=answer.from_whom,
        in_another_voice=answer.in_another_voice,
    )
