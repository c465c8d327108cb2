"""Pages keep to rules of width, references, links and words.

`python -m tests.prose` wraps paragraphs that are too wide and defines the references of each page at its end.
"""

from tests.claims.pages import ROOT, pages

_OTHERS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "[a-z]*/README.md",
    "integration/*/README.md",
    "tests/*/README.md",
)
PAGES = [*pages(), *(page for pattern in _OTHERS for page in sorted(ROOT.glob(pattern)))]
