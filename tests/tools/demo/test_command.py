"""The command: what it prints, in which form, and how it exits."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.canary.blind import blind
from trtllm_kvfix.canary import canary
from trtllm_kvfix.cli import main
from trtllm_kvfix.errors import EXIT_INTERRUPTED
from trtllm_kvfix.hazards.table import Scene
from trtllm_kvfix.native import DigestRing
from trtllm_kvfix.tools.demo import command, scenes
from trtllm_kvfix.tools.demo.report import SceneOutcome


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["demo", "--device", "cpu", *map(str, arguments)])


def test_it_shows_every_scene_in_a_narrow_terminal() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("simulated device, seed 0: 6 chats")
    assert "9 of them carry the text of ada or ben or cleo" in result.stdout
    assert "with the fixes, 0 were wrong" in result.stdout.splitlines()[-1]
    assert "ada: captain mora keeps …" in result.stdout  # the prompt
    read = next(line for line in result.stdout.splitlines() if "a prns when i am seventy" in line)
    assert read.split()[-2:] == ["cleo's", "right"]  # whose text it is
    tables = [line for line in result.stdout.splitlines() if line.rstrip().endswith(("right", "with it"))]
    assert len(tables) == 6 * 5
    assert max(map(len, tables)) <= 80


def test_the_page_has_every_answer_and_says_what_ran(tmp_path: Path) -> None:
    page = tmp_path / "demo.html"
    result = run("--fix", "computed-blocks=off", "--html", page)
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert "on a simulated device</h1>" in text and "not TensorRT-LLM" in text
    assert text.count("<tr><td>") == 12
    assert "ada's text</span>" in text
    assert "<mark>" in text
    assert "$" not in text.split("</style>")[1]


def test_what_a_canary_says_stands_below_its_scene(tmp_path: Path) -> None:
    page = tmp_path / "demo.html"
    result = run("--canary", "--fix", "staged-offsets-v1=off", "--html", page)
    line = "The canary: 112 blocks changed. First, in step 3: block in slot 0 of request 1, which request 4 reuses"
    assert line in result.stdout and line in page.read_text(encoding="utf-8")
    silent = run("--canary", "--fix", "graph-inputs=off")
    assert "The canary is silent" in silent.stdout and silent.exit_code == 0


def test_a_canary_that_hears_nothing_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    result = run("--canary", "--fix", "staged-offsets-v1=off")
    assert result.exit_code == 1
    assert "the canary says nothing without it. This is a bug." in result.stdout


class Restless:
    """A ring whose digests of the first layer are others each time."""

    def __init__(self, ring: DigestRing) -> None:
        self._ring, self._times = ring, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)

    def arrived(self) -> list[list[bytes]]:
        self._times += 1
        first = self._times.to_bytes(8, "little")
        return [[first + digests[len(first) :] for digests in sent] for sent in self._ring.arrived()]


def test_a_canary_that_speaks_with_every_fix_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    ring_of = canary.ring_of
    monkeypatch.setattr(canary, "ring_of", lambda *args: Restless(ring_of(*args)))
    result = run("--canary", "--fix", "staged-offsets-v1=off")
    assert result.exit_code == 1
    assert "the canary is not silent although every fix is on. This is a bug." in result.stdout


def test_a_file_that_cannot_be_written_is_bad_usage_after_the_results_are_shown(tmp_path: Path) -> None:
    for option in ("--html", "--svg"):
        result = run("--fix", "graph-inputs=off", option, tmp_path / ("long" * 100))
        assert result.exit_code == 2
        assert "On a simulated device, 3 of 12 answers were wrong without the fixes" in result.stdout
        assert f"{option} is '" in result.stderr and "cannot be written: File name too long" in result.stderr


def test_ctrl_c_says_which_scenes_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played: list[str] = []

    def interrupted(scene: Scene, device_name: str, seed: int) -> SceneOutcome:
        if played:
            raise KeyboardInterrupt
        played.append(scene.fix)
        return scenes.play(scene, device_name, seed)

    monkeypatch.setattr(command, "play", interrupted)
    page = tmp_path / "demo.html"
    result = run("--fix", "graph-inputs=off", "--fix", "computed-blocks=off", "--html", page)
    assert result.exit_code == EXIT_INTERRUPTED
    assert result.stdout.splitlines()[-1].startswith("Interrupted after 1 of 2 scenes. On a simulated device, ")
    assert "<h1>1 of 2 scenes ran before the interrupt, on a simulated device</h1>" in page.read_text(encoding="utf-8")


def test_interrupted_before_the_first_scene_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "play", interrupted)
    result = run("--fix", "graph-inputs=off")
    assert result.exit_code == EXIT_INTERRUPTED
    assert result.stdout.splitlines()[-1] == "Interrupted after 0 of 1 scene. Nothing was shown."


def test_json_is_the_report() -> None:
    report = json.loads(run("--fix", "graph-inputs=off", "--json").stdout)
    assert report["proven"] is True and report["simulated"] is True
    (scene,) = report["scenes"]
    assert scene["fix"] == "graph-inputs" and scene["shown"] is True
    assert all(answer["right"] for answer in scene["fixed"]["answers"])
    assert sum(answer["in_another_voice"] for answer in scene["control"]["answers"]) == 3


def test_a_fix_that_does_not_hold_and_a_control_that_stays_right_exit_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    config_of = scenes.config_of
    monkeypatch.setattr(scenes, "config_of", lambda scene, off=(): config_of(scene))  # noqa: ARG005
    result = run("--fix", "graph-inputs=off")
    assert result.exit_code == 1
    assert "no answer is wrong without it" in result.stdout
    monkeypatch.setattr(scenes, "config_of", lambda scene, off=(): config_of(scene, {scene.fix}))  # noqa: ARG005
    result = run("--fix", "graph-inputs=off")
    assert result.exit_code == 1
    assert "wrong although every fix is on" in result.stdout


def test_bad_usage_exits_with_2() -> None:
    assert run("--fix", "token-budget=off").exit_code == 2
    assert run("--manager", "none").exit_code == 2
    assert run("--seed", str(2**64)).exit_code == 2
    assert run("--html", "nowhere/at/all.html").exit_code == 2
    assert CliRunner().invoke(main, ["demo", "--device", "abacus"]).exit_code == 2


def test_the_picture_shows_what_the_terminal_shows_and_fetches_nothing(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    assert run("--fix", "graph-inputs=off", "--svg", picture).exit_code == 0
    text = picture.read_text(encoding="utf-8")
    assert "HER_PUMPKINS_EVERY_NIGHt!" in text.replace("&#160;", " ")
    assert "url(https" not in text and 'url("http' not in text
