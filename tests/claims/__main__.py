"""List what the pages claim: the rows, their commit, and whether the code that they measure has changed since.

python -m tests.claims                  # exits with 1 where a figure has no row or differs from it
python -m tests.claims --files          # names the files that have changed, too, where this copy has the rows' commits
python -m tests.claims --update-trees   # after new rows: keep the digests of what they measured
python -m tests.claims --take FILE OLD NEW   # write the pages' figures anew, from the rows of another commit
python -m tests.claims --fresh          # exits with 1, too, where the code has changed since: for a release
"""

import sys
from collections.abc import Iterator

import click

from tests.claims import trees
from tests.claims.claims import claims_of, complaints
from tests.claims.pages import ROOT, blocks, pages
from tests.claims.taken import take

Source = tuple[str, str, str]  # page, file, commit
SHOWN_MAX = 4  # folders and files of a source


def sources() -> dict[Source, set[str]]:
    """The machines behind each file and commit that a page quotes."""
    found: dict[Source, set[str]] = {}
    for page in pages():
        for block in blocks(page):
            for claim in claims_of(block):
                for commit in claim.commits:
                    rows = [row for row in claim.rows.all if row["commit"] == commit]
                    key = (str(page.relative_to(ROOT)), claim.rows.file, commit)
                    found.setdefault(key, set()).update(_where(row) for row in rows)
    return found


def stale() -> Iterator[tuple[Source, list[str]]]:
    for source in sources():
        if changed := trees.changed_since(source[1], source[2]):
            yield source, changed


def main(arguments: list[str]) -> int:
    if "--update-trees" in arguments:
        for commit in trees.update():
            click.echo(
                f"this copy has no commit {commit} (a shallow copy, or it was rebased): what is kept of it stays"
            )
        return 0
    if "--take" in arguments:
        for page in take(*arguments[arguments.index("--take") + 1 :]):
            click.echo(f"{page.relative_to(ROOT)}: read what its words say of the new figures")
        return 0
    wrong = [text for page in pages() for block in blocks(page) for text in complaints(block)]
    old = dict(stale())
    for source, machines in sorted(sources().items()):
        changed = f"; changed since: {_some(old[source])}" if source in old else ""
        click.echo(f"{source[0]}: {source[1]}, commit {source[2]}, {'; '.join(sorted(machines))}{changed}")
        if changed and "--files" in arguments:
            click.echo(_files(source))
    click.echo("\n".join([*wrong, ""]), nl=False)
    click.echo(
        f"{len(wrong)} figures are wrong or have no row; {len(old)} of {len(sources())} sources have changed since."
    )
    return int(bool(wrong) or ("--fresh" in arguments and bool(old)))


def _some(paths: list[str]) -> str:
    shown, more = paths[:SHOWN_MAX], len(paths) - SHOWN_MAX
    return ", ".join(shown) + (f" and {more} more (--files)" if more > 0 else "")


def _files(source: Source) -> str:
    files = trees.files_changed_since(source[1], source[2])
    if files is None:
        changed = "\n".join(f"    {path}" for path in trees.changed_since(source[1], source[2]))
        return f"{changed}\n    this copy has no commit {source[2]}, so of folders nobody can tell the files"
    return "\n".join(f"    {verdict:7}  {name}" for name, verdict in files.items())


def _where(row: dict[str, str]) -> str:
    return f"{row['date'][:10]} {row.get('machine') or row.get('device', '')}".strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
