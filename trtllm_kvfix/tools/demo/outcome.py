"""Outcome of a run of `demo`. These models are also the JSON that `--json` prints."""

from pydantic import BaseModel, ConfigDict, computed_field


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AnswerRead(_Found):
    user: str
    turn: int  # from 1
    asked: str
    expected: str
    read: str
    right: bool
    from_whom: str | None  # in whose notes a wrong answer stands
    in_another_voice: bool  # the right letters, shouted or hushed by another's adapter


class Arm(_Found):
    answers: list[AnswerRead]
    steps: int
    preemptions: int
    tokens_computed: int  # of prompts
    tokens_reused: int
    blocks_onboarded: int

    @property
    def wrong(self) -> list[AnswerRead]:
        return [answer for answer in self.answers if not answer.right]

    @property
    def foreign(self) -> list[AnswerRead]:
        return [answer for answer in self.answers if answer.from_whom is not None]


class SceneOutcome(_Found):
    fix: str
    hazard: str
    title: str
    without: str
    manager: str
    control: Arm
    fixed: Arm

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shown(self) -> bool:
        """Without the fix answers are wrong, with it none is."""
        return bool(self.control.wrong) and not self.fixed.wrong


class Report(_Found):
    """`demo --json`."""

    version: str
    device: str
    simulated: bool
    seed: int
    scenes: list[SceneOutcome]
    scenes_planned: int  # Ctrl-C leaves fewer, each of which was played to its end

    @computed_field  # type: ignore[prop-decorator]
    @property
    def partial(self) -> bool:
        return len(self.scenes) < self.scenes_planned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def proven(self) -> bool:
        return not self.partial and all(scene.shown for scene in self.scenes)
