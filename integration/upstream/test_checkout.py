"""A checkout is compared and run, and where that shows nothing, the exit code says so."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import tomllib

from integration.upstream import assemble
from integration.upstream.assemble import DIFFERS, MANIFEST, RUNTIME, main, manifest
from integration.upstream.test_v2_compared import TREE, needs_runtime

ERA = "S"


def test_a_checkout_that_differs_is_no_error_of_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    assert main(["--verify", str(tmp_path), "--era", ERA]) == DIFFERS


@needs_runtime
def test_the_runtime_that_is_compared_is_the_one_of_the_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--verify", str(TREE), "--era", "V2"]) == 0
    assert "proved for no release" in capsys.readouterr().out
    changed = shutil.copytree(TREE, tmp_path / "changed")
    page = changed / "tensorrt_llm/runtime/kv_cache_manager_v2/_page.py"
    page.write_text(page.read_text(encoding="utf-8").replace("return", "pass; return", 1), encoding="utf-8")
    assert main(["--verify", str(changed), "--era", "V2"]) == DIFFERS
    assert "_page.py: " in capsys.readouterr().out


def test_a_file_of_another_length_than_its_recipe_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUNTIME).mkdir()
    (tmp_path / RUNTIME / "made.py").write_text("limit = 3\n", encoding="utf-8")
    recipe = '[[file]]\neras = ["V2"]\npath = "made.py"\nrepository = "a/b"\ncommit = "c"\nchars = 12\n'
    (tmp_path / RUNTIME / "recipe.toml").write_text(recipe, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"made.py has 10 characters, recipe.toml says 12"):
        manifest(tmp_path)


def test_what_only_the_manifest_knows_stays_in_it(tmp_path: Path) -> None:
    assert manifest(tmp_path) == MANIFEST.read_text(encoding="utf-8")


def test_a_statement_without_a_name_stays_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that wrote the manifest had the end of the file, and this one has its beginning."""
    known, here = "limit(4)\n", "limit(3)\n"
    entry = {"eras": ["V2"], "path": "made.py", "excerpts": [["Expr", len(known), sha256(known.encode()).hexdigest()]]}
    monkeypatch.setattr(assemble, "_files", lambda: [entry])
    (tmp_path / RUNTIME).mkdir()
    (tmp_path / RUNTIME / "made.py").write_text(here, encoding="utf-8")
    recipe = '[[file]]\neras = ["V2"]\npath = "made.py"\nchars = 9\n'
    (tmp_path / RUNTIME / "recipe.toml").write_text(recipe, encoding="utf-8")
    (made,) = tomllib.loads(manifest(tmp_path))["file"]
    assert [each[2] for each in made["excerpts"]] == [sha256(each.encode()).hexdigest() for each in (known, here)]


def test_what_is_no_checkout_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no tensorrt_llm"):
        main(["--verify", str(tmp_path), "--era", ERA])


def test_an_era_of_which_nothing_was_read_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    with pytest.raises(SystemExit, match="nothing of era 'Z'; it has A, "):
        main(["--verify", str(tmp_path), "--era", "Z"])


@pytest.mark.parametrize(
    ("by_arm", "code"),
    [
        ({"off": "wrong", "only": "right", "all": "right"}, 0),
        ({"off": "right", "only": "not-run", "all": "right"}, 0),
        ({"off": "right", "only": "wrong", "all": "right"}, 1),
        ({"off": "right", "only": "not-run", "all": "not-run"}, 1),
        ({}, 1),
    ],
)
def test_the_exit_code_needs_an_arm_that_ran(by_arm: dict[str, str], code: int) -> None:
    pytest.importorskip("torch", reason="the rig needs torch, on the CPU")
    from integration.upstream.__main__ import verdict  # noqa: PLC0415  it needs torch
    from integration.upstream.running import Result  # noqa: PLC0415

    assert verdict([Result(ERA, "offsets-overlap", "all", arm, found) for arm, found in by_arm.items()]) == code


def test_a_checkout_keeps_what_it_has_and_lacks_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the rig needs torch, on the CPU")
    from integration.upstream.finder import Tree  # noqa: PLC0415

    assert Tree(tmp_path, {}).lacking == {"KVCacheManager": [], "PyExecutor": []}
