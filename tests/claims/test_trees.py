"""Rows are old where the code that they measured has changed, and nowhere else."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.claims import trees

Commit = Callable[[dict[str, str | None]], str]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commit:
    """Commits files, those without text removed, and returns the commit."""
    monkeypatch.setattr(trees, "ROOT", tmp_path)
    monkeypatch.setattr(trees, "TREES", tmp_path / "trees.json")
    monkeypatch.setattr(trees, "measured", lambda: {"a.csv": ["cpp/core", "cmake/core.cmake"]})

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    def commit(files: dict[str, str | None]) -> str:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text, encoding="utf-8")
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "-m", "a")
        return git("rev-parse", "--short=7", "HEAD").strip()

    git("init", "--quiet")
    return commit


def rows_of(monkeypatch: pytest.MonkeyPatch, *commits: str) -> None:
    monkeypatch.setattr(trees, "read", lambda _: [{"commit": commit} for commit in commits])
    trees.update()
    trees.kept.cache_clear()
    trees.today.cache_clear()


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    yield
    trees.kept.cache_clear()
    trees.today.cache_clear()


def test_a_change_of_code_is_named_by_folder_and_by_file(repository: Commit, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = repository({"cpp/core/a.cc": "int a = 1;", "cpp/core/b.cc": "int b;", "cpp/other.cc": "int c;"})
    rows_of(monkeypatch, commit, f"{commit}+")
    assert trees.changed_since("a.csv", commit) == []
    repository({"cpp/core/a.cc": "// One.\nint a = 1;", "cpp/other.cc": "", "cpp/core/README.md": "Read."})
    rows_of(monkeypatch, commit)
    assert (trees.changed_since("a.csv", commit), trees.files_changed_since("a.csv", commit)) == ([], {})
    repository({"cpp/core/a.cc": "int a = 2;", "cpp/core/b.cc": None, "cpp/core/c.cc": "int b;"})
    rows_of(monkeypatch, commit)
    assert trees.changed_since("a.csv", f"{commit}+") == ["cpp/core"]
    verdicts = {"cpp/core/a.cc": "changed", "cpp/core/b.cc": "gone", "cpp/core/c.cc": "new"}
    assert trees.files_changed_since("a.csv", commit) == verdicts


def test_what_is_not_committed_counts_and_what_a_build_leaves_does_not(
    repository: Commit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = repository({"cpp/core/a.cc": "int a;", "cmake/core.cmake": "project(a)"})
    (tmp_path / "cpp" / "core" / "a.so").write_bytes(b"\x7f")
    rows_of(monkeypatch, commit)
    assert trees.changed_since("a.csv", commit) == []
    (tmp_path / "cmake" / "core.cmake").write_text("project(b)", encoding="utf-8")
    trees.today.cache_clear()
    assert trees.changed_since("a.csv", commit) == ["cmake/core.cmake"]


def test_a_copy_without_history_tells_what_is_kept(
    repository: Commit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = repository({"cpp/core/a.cc": "int a;"})
    rows_of(monkeypatch, commit)
    (tmp_path / ".git").rename(tmp_path / "gone")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert trees.update() == [commit]
    trees.kept.cache_clear()
    assert trees.changed_since("a.csv", commit) == []
    assert trees.files_changed_since("a.csv", commit) is None
    (tmp_path / "cpp" / "core" / "a.cc").write_text("int b;", encoding="utf-8")
    trees.today.cache_clear()
    assert trees.changed_since("a.csv", commit) == ["cpp/core"]


def test_a_commit_that_nobody_has_is_unknown(repository: Commit, monkeypatch: pytest.MonkeyPatch) -> None:
    repository({"cpp/core/a.cc": "int a;"})
    monkeypatch.setattr(trees, "read", lambda _: [{"commit": "0123456"}])
    assert trees.update() == ["0123456"]
    trees.kept.cache_clear()
    assert "cpp/core (unknown: nobody has that commit)" in trees.changed_since("a.csv", "0123456")


def test_digests_of_every_commit_are_kept_and_are_those_of_git() -> None:
    for commit, paths in trees.needed().items():
        assert paths <= set(trees.kept().get(commit, {})), "run: python -m tests.claims --update-trees"
        real = trees.of_git(commit, paths)
        if real is not None:  # a shallow copy lacks most commits
            assert {path: trees.kept()[commit][path] for path in paths} == real


def test_every_path_that_is_measured_is_there() -> None:
    """A folder or file that was renamed would be empty then and now, and so unchanged for ever."""
    paths = {path for listed in trees.measured().values() for path in listed}
    assert [path for path in sorted(paths) if not trees.today(path)] == []
