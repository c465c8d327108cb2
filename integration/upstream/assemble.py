"""Builds a tree of TensorRT-LLM's Python for each era out of verbatim excerpts, and compares a checkout with them.

    python -m integration.upstream.assemble            # $KVFIX_UPSTREAM/windows -> $KVFIX_UPSTREAM/trees
    python -m integration.upstream.assemble --manifest # and rewrite manifest.toml
    python -m integration.upstream.assemble --verify CHECKOUT --era D

The excerpts lie outside of this repository and never get into it: manifest.toml only names and hashes them.
"""

import argparse
import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from integration.upstream.slices import Slice, cut, of_module

VARIABLE = "KVFIX_UPSTREAM"
RECIPE = "recipe.toml"  # in the folder with the excerpts
RUNTIME = "v2-runtime"  # beside it, with files that are whole
UNKNOWN = "unknown"
EXCERPTS = "EXCERPTS"  # marks a tree that is not whole
DIFFERS = 3  # the exit code of a comparison that found something; an error ends with 1
MANIFEST = Path(__file__).resolve().parent / "manifest.toml"


@dataclass(frozen=True)
class Source:
    """One file of upstream, as far as excerpts of it are there."""

    eras: tuple[str, ...]
    path: str
    windows: Path  # a folder of excerpts, or the whole file
    chars: int  # of the whole file
    repository: str = ""  # of a fork, too
    commit: str = UNKNOWN  # of a file that is stored by number alone
    begins_in: str = ""  # the class in whose body the first excerpt begins


def cache() -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise SystemExit(f"{VARIABLE} is not set; it names the folder with windows/ and {RECIPE}")
    return Path(folder)


def sources(folder: Path) -> Iterator[Source]:
    """What the recipes of the folder name: the excerpts, and the whole files of V2's runtime."""
    for root in (folder, folder / RUNTIME):
        if (root / RECIPE).exists():
            for each in tomllib.loads((root / RECIPE).read_text(encoding="utf-8"))["file"]:
                named = each.pop("windows", None)
                windows = root / each["path"] if named is None else root / "windows" / str(named)
                yield Source(eras=tuple(each.pop("eras")), windows=windows, **each)


def parts(windows: Path) -> list[tuple[int, str]]:
    """Contiguous text by its offset. Windows that overlap must agree."""
    if windows.is_file():
        return [(0, windows.read_bytes().decode())]
    found: list[tuple[int, str]] = []
    for path in sorted(windows.glob("*.txt")):
        offset, text = int(path.stem), path.read_bytes().decode()
        if not found or offset > found[-1][0] + len(found[-1][1]):
            found.append((offset, text))
            continue
        start, before = found[-1]
        overlap = before[offset - start :]
        if overlap[: len(text)] != text[: len(overlap)]:
            raise SystemExit(f"{path} and the window before it differ where they overlap")
        found[-1] = (start, before + text[len(overlap) :])
    return found


def slices(source: Source) -> list[Slice]:
    found: dict[str, Slice] = {}
    open_class = source.begins_in or None
    for offset, text in parts(source.windows):
        ends = offset + len(text) >= source.chars
        some, open_class = cut(text, starts_file=offset == 0, ends_file=ends, open_class=open_class)
        for each in some:
            # A property, its setter, an overload and branches of `try` share a name.
            found[each.name if each.name not in found else f"{each.name}#{len(found)}"] = each
    return list(found.values())


def module_text(found: Iterable[Slice]) -> str:
    """The slices in order. A class whose head no excerpt holds gets a head of ours."""
    text, owner = "", ""
    for each in found:
        wanted = each.name.split(".")[0] if "." in each.name and each.text.startswith("    ") else ""
        if wanted and wanted != owner:
            text += f"\n\nclass {wanted}:  # head not among the excerpts\n\n"
        owner = wanted or (each.name if each.core.lstrip().startswith(("class ", "@")) else "")
        text += each.text if each.text.endswith("\n") else each.text + "\n"
    return text


def build(folder: Path, trees: Path) -> dict[str, list[str]]:
    """Write the trees; returns the files of each era. A file that is there whole is run where it is."""
    written: dict[str, list[str]] = {}
    for source in sources(folder):
        if source.windows.is_file():
            continue
        text = module_text(slices(source))
        compile(text, source.path, "exec")
        for era in source.eras:
            target = trees / era / source.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            (trees / era / EXCERPTS).touch()
            written.setdefault(era, []).append(source.path)
    return written


def manifest(folder: Path) -> str:
    """Of what the folder has. What only the manifest knows stays in it as it is."""
    here = [_entry(source) for source in sources(folder)]
    entries = {(tuple(each["eras"]), each["path"]): each for each in _files()}
    for each in here:
        before = entries.get((tuple(each["eras"]), each["path"]), {"excerpts": []})
        excerpts = {_known_by(one): one for one in (*before["excerpts"], *each["excerpts"])}
        entries[tuple(each["eras"]), each["path"]] = before | each | {"excerpts": list(excerpts.values())}
    lines = ["# Written by `python -m integration.upstream.assemble --manifest`. Names and hashes, never text."]
    for entry in entries.values():
        lines += ["", "[[file]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in entry.items() if key != "excerpts"]
        lines.append("# qualified name, characters, sha256")
        lines.append("excerpts = [")
        lines += [f"  [{_toml(name)}, {chars}, {_toml(sha256)}]," for name, chars, sha256 in entry["excerpts"]]
        lines.append("]")
    return "\n".join(lines) + "\n"


def _known_by(excerpt: Sequence[Any]) -> str:
    """By its name, if it alone has it. The number behind a name depends on which excerpts are there."""
    name, _, sha256 = excerpt
    is_nameless = issubclass(getattr(ast, name, object), ast.stmt)
    return str(sha256 if is_nameless or "#" in name else name)


def _entry(source: Source) -> dict[str, Any]:
    entry: dict[str, Any] = {"eras": list(source.eras), "path": source.path}
    if source.repository:
        entry["repository"] = source.repository
    entry["commit"] = source.commit
    if source.windows.is_file():
        whole = source.windows.read_bytes()
        if len(whole.decode()) != source.chars:
            raise SystemExit(f"{source.windows} has {len(whole.decode())} characters, {RECIPE} says {source.chars}")
        entry |= {"chars": source.chars, "sha256": hashlib.sha256(whole).hexdigest()}
    return entry | {"excerpts": [(each.name, len(each.core), each.sha256) for each in slices(source)]}


def _files() -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["file"]
    return files


def _toml(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def verify(checkout: Path, era: str) -> Iterator[str]:
    """Compare a checkout with the manifest by qualified name; yields what differs or is missing. An era may mix files
    of several commits, so each says of which it is, where that is known."""
    if not (checkout / "tensorrt_llm").is_dir():
        raise SystemExit(f"{checkout} holds no tensorrt_llm: name the root of a checkout")
    files = _files()
    if not any(era in file["eras"] for file in files):
        raise SystemExit(f"{MANIFEST.name} holds nothing of era {era!r}; it has {_eras(files)}")
    for file in files:
        if era not in file["eras"]:
            continue
        path = checkout / file["path"]
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        found = {each.sha256: each.name for each in of_module(text)}
        names = set(found.values())
        for name, _, sha256 in file["excerpts"]:
            if sha256 not in found:
                state = "differs" if name.split("#")[0] in names else "missing"
                read_at = "" if file["commit"] == UNKNOWN else f" (read at {file['commit']})"
                yield f"{file['path']}: {name}: {state}{read_at}"


def mixed(era: str) -> str:
    """What a comparison with this era cannot say, or nothing."""
    commits = {file["commit"] for file in _files() if era in file["eras"]}
    if len(commits) == 1 and UNKNOWN not in commits:
        return ""
    return f"Era {era} was not read at one known commit, so what is shown on it is proved for no release."


def _eras(files: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({era for file in files for era in file["eras"]}))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.upstream.assemble")
    parser.add_argument("--manifest", action="store_true", help="rewrite manifest.toml from the excerpts")
    parser.add_argument("--verify", type=Path, metavar="CHECKOUT", help="compare a checkout with manifest.toml")
    parser.add_argument("--era", default="D", help="whose excerpts to compare with")
    given = parser.parse_args(arguments)
    if given.verify:
        complaints = list(verify(given.verify, given.era))
        sys.stdout.writelines(f"{line}\n" for line in [*complaints, mixed(given.era)] if line)
        return DIFFERS if complaints else 0
    folder = cache()
    if not any(sources(folder)):
        raise SystemExit(f"{folder} has no {RECIPE}, and neither has {folder / RUNTIME}")
    for era, files in sorted(build(folder, folder / "trees").items()):
        sys.stdout.write(f"{era}: {len(files)} files\n")
    if given.manifest:
        MANIFEST.write_text(manifest(folder), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
