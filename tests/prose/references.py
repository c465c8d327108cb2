"""References such as T#15546: links that each page defines at its end; relative links, and names of files, that lead
somewhere."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORIES = {"T": "NVIDIA/TensorRT-LLM", "V": "vllm-project/vllm"}
ISSUES = {"T#13318"}  # the others are pull requests; GitHub leads from one kind to the other
_REFERENCE = re.compile(r"(?<![\w[])([TV]#\d+)")
_LINKED = re.compile(r"\[([TV]#\d+)\](?![:(])")
_INLINE = re.compile(r"\[([TV]#\d+)\]\((\S+?)\)")
_DEFINITION = re.compile(r"^\[([TV]#\d+)\]: (\S+)$", re.MULTILINE)
_CODE = re.compile(r"```.*?```|<!--.*?-->|`[^`\n]*`", re.DOTALL)  # and notes
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`")
_FOLDERS = "bench|cmake|cpp|docs|examples|integration|licenses|tests|tools|trtllm_kvfix|watch"
_FILE = re.compile(rf"(?:{_FOLDERS})/[\w./-]+|test_\w+\.py")
_PLACEHOLDER = re.compile(r"[A-Z]{4,}(?!\.md)")  # tests/fixes/test_ROOM.py


def address(reference: str) -> str:
    kind = "issues" if reference in ISSUES else "pull"
    return f"https://github.com/{REPOSITORIES[reference[0]]}/{kind}/{reference[2:]}"


def defined(text: str) -> str:
    """The page with a definition of each reference at its end."""
    body = _DEFINITION.sub("", text).rstrip("\n") + "\n"
    found = sorted(set(_LINKED.findall(_CODE.sub("", body))), key=lambda each: (each[0], int(each[2:])))
    return body + ("\n" if found else "") + "".join(f"[{each}]: {address(each)}\n" for each in found)


def unlinked(text: str) -> list[str]:
    """References that no reader can follow."""
    text = _CODE.sub("", text)
    definitions = dict(_DEFINITION.findall(text))
    plain = _REFERENCE.findall(_DEFINITION.sub("", text))
    plain += [each for each, link in _INLINE.findall(text) if link != address(each)]
    return plain + [each for each in _LINKED.findall(text) if definitions.get(each) != address(each)]


def broken(page: Path, text: str) -> Iterator[str]:
    """Relative links without their file, or without the heading that they name."""
    for link in _LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{link}: there is no {name}"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{link}: {target.name} has no heading for #{anchor}"


def missing(text: str, files: Iterable[str]) -> list[str]:
    """Files and folders of the repository that the page names in code, and that are not among `files`. A name may begin
    at any folder, and that of a test is enough by itself."""
    there = {each for file in files for place in (Path(file), *Path(file).parents) for each in _ends(place)}
    plain = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    words = [word for span in _SPAN.findall(plain) for word in span.split()]
    named = [word.rstrip("/") for word in words if _FILE.fullmatch(word) and not _PLACEHOLDER.search(word)]
    return [name for name in named if name not in there]


def _ends(place: Path) -> Iterator[str]:
    return (str(Path(*place.parts[begin:])) for begin in range(len(place.parts)))


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
