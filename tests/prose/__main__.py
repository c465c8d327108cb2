"""Wrap wide paragraphs of all pages and define their references: `python -m tests.prose`."""

from tests.claims.pages import ROOT, pages
from tests.prose.references import defined
from tests.prose.width import wrapped


def main() -> None:
    for page in (*pages(), ROOT / "CHANGELOG.md"):
        text = page.read_text(encoding="utf-8")
        mended = defined(wrapped(text))
        if mended != text:
            page.write_text(mended, encoding="utf-8")


if __name__ == "__main__":
    main()
