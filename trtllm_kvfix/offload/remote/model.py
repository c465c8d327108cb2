"""Identity of an engine's blocks besides their tokens: the weights, and the layout of the blocks."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.offload.remote.arguments import arguments_of
from trtllm_kvfix.offload_section import RemoteSettings

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
DIGEST_CHARS = (40, 64)  # of a git object, of a file in large file storage


def parts_of(llm_args: Any, settings: RemoteSettings) -> dict[str, str]:
    told = {
        "release": str(getattr(sys.modules.get("tensorrt_llm"), "__version__", None)),
        "model": settings.model or digest_of_checkpoint(getattr(llm_args, "model", None)),
    }
    return told | {f"argument {name}": text for name, text in arguments_of(llm_args).items()}


def layout_parts(kinds: Iterable[str], ranks: int) -> dict[str, str]:
    return {"layout": repr(list(kinds)), "ranks": str(ranks)}


def digest_of_checkpoint(model: Any) -> str:
    """The digest of a snapshot whose files link to contents that are named by their digests, as the Hugging Face hub
    keeps them.

    A path or a name alone would let two models share blocks as soon as somebody copies other weights there.
    """
    folder = Path(str(model))
    names = sorted(found_in(folder))
    if not names or not any(file.match(kind) for file, _ in names for kind in WEIGHTS):
        raise SettingsError(
            f"kvfix.offload.remote.model is not set, and {model!r} is not a snapshot whose files are named by their "
            "digests; write a name for these weights alone, the same on every node"
        )
    return hashlib.sha256(repr([(file.name, digest) for file, digest in names]).encode()).hexdigest()


def found_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Weights and configuration; nothing where one of them is a file of its own."""
    files = [file for kind in (*WEIGHTS, "*.json") for file in folder.glob(kind)] if folder.is_dir() else []
    digests = [file.resolve().name for file in files]
    if all(file.is_symlink() and is_digest(digest) for file, digest in zip(files, digests, strict=True)):
        yield from zip(files, digests, strict=True)


def is_digest(name: str) -> bool:
    return len(name) in DIGEST_CHARS and set(name) <= set("0123456789abcdef")
