"""Wrap wide paragraphs of all pages and define their references: `python -m tests.prose`."""

from tests.prose import PAGES
from tests.prose.references import defined
from tests.prose.width import wrapped


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        mended = defined(wrapped(text))
        if mended != text:
            page.write_text(mended, encoding="utf-8")


if __name__ == "__main__":
    main()
