"""Read a file that somebody else has written or chosen, such as a file of TensorRT-LLM's, of another process, or one
that a setting names.

Only regular files are read, and no more of them than the caller expects: a named pipe would wait for its writer, a
device such as /dev/zero has no end, and a name may be a link to either. What is wrong is an OSError, or a ValueError
that completes the sentence `FILE cannot be read: ...`."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SOURCE_BYTES_MAX = 4 << 20  # of a file of Python or C++; upstream's longest have some hundred KB


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(descriptor)


def all_of(stream: BinaryIO, bytes_max: int) -> bytes:
    """The size that the system states may be wrong: a log grows, and files of /proc have none."""
    content = stream.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"it has more than {bytes_max} bytes; is it another file?")
    return content


def bytes_of(file: Path, bytes_max: int) -> bytes:
    with opened(file) as stream:
        return all_of(stream, bytes_max)


def text_of(file: Path, bytes_max: int, *, errors: str = "strict") -> str:
    return bytes_of(file, bytes_max).decode("utf-8", errors)
