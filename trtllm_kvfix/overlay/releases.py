"""Map a release to its variant in docs/support.md, as far as known. For display only: probes look at features.

No release was installed or unpacked where this was written. The source that was read bears no tag, so every row is
inferred: from dates, and from what pull requests say of releases.
"""

import re
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

_FINAL = 1 << 30  # after all of its candidates
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?(?:\.post(\d+))?(?:\+\S+)?")

Key = tuple[int, ...]


class Releases(NamedTuple):
    first: str
    last: str
    variants: tuple[str, ...]
    why: str

    @property
    def title(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def shown(self) -> str:
        return " or ".join(self.variants)


KNOWN = (
    Releases("1.1.0rc0", "1.1.0", ("A",), "source of October 2025 has the features of A"),
    Releases("1.2.0rc0", "1.2.0rc8", ("A", "B"), "the manager took the table over in between; not read"),
    Releases("1.2.0", "1.2.0", ("B",), "source of January and February 2026 has the features of B"),
    Releases("1.2.1", "1.2.1", ("B",), "T#12768 says what release/1.2.1 lacks, which is what B lacks; it has T#12673"),
    Releases("1.3.0rc0", "1.3.0rc5.post2", ("B",), "source of February 2026; T#12818 takes T#12673 to rc5.post2"),
    Releases("1.3.0rc6", "1.3.0rc10", ("B", "B2"), "contexts were split into two lists in between; not read"),
    Releases("1.3.0rc11", "1.3.0rc12.post1", ("B2",), "published within days of T#13029 being proposed"),
    Releases("1.3.0rc13", "1.3.0rc18", ("C",), "T#13029 was merged in April 2026, T#15546 proposed on 23 June"),
    Releases("1.3.0rc19", "1.3.0rc20", ("C", "D"), "the page of rc19, of 23 June 2026, lists T#14881"),
    Releases("1.3.0rc21", "1.3.0rc29", ("D",), "source of July and August 2026 has the features of D"),
    Releases("1.4.0rc0", "1.4.0rc4", ("D", "N"), "from October 2026 on; V2 is the default since rc1, T#17495"),
)


def of(version: str | None) -> Releases | None:
    """The variant of a release; None if the release is not on the list, such as a later one."""
    key = key_of(version or "")
    if key is None:
        return None
    return next((row for row in KNOWN if (key_of(row.first) or ()) <= key <= (key_of(row.last) or ())), None)


def key_of(version: str) -> Key | None:
    """Orders releases. None: not a version of upstream's form."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    major, minor, patch, candidate, post = found.groups()
    return int(major), int(minor), int(patch), _FINAL if candidate is None else int(candidate), int(post or 0)


def distribution_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
