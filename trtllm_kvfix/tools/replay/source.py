"""Read the lines of a trace from a file or standard input, plain or gzipped, with or without a byte order mark."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from trtllm_kvfix.errors import KvfixError

STANDARD_INPUT = Path("-")
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE_BYTES_MAX = 64 << 20  # millions of tokens; a small gzip file may hold a line that no memory does


class TraceError(KvfixError):
    """The trace cannot be used as it is."""

    exit_code = 2


def name_of(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


@contextmanager
def lines_of(path: Path) -> Iterator[Iterator[bytes]]:
    name = name_of(path)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise TraceError(f"trace {name} cannot be read: it is closed")
    try:
        if path == STANDARD_INPUT:
            yield _numbered_failures(sys.stdin.buffer, name)
        else:
            with path.open("rb") as file:
                yield _numbered_failures(file, name)
    except OSError as error:
        raise TraceError(f"trace {name} cannot be read: {error.strerror or error}") from error


def _numbered_failures(file: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines. gzip finds out late that a file is broken, so the error names the line."""
    number = 0
    try:
        reader = _unzipped(file, name)
        for number, line in enumerate(iter(lambda: reader.readline(LINE_BYTES_MAX + 1), b""), start=1):
            if len(line) > LINE_BYTES_MAX:
                raise TraceError(
                    f"trace {name} line {number} has more than {LINE_BYTES_MAX:,} bytes; expected one request a line "
                    "(an array of all requests? `jq -c '.[]'` writes each on a line of its own)"
                )
            yield line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(
            f"trace {name} line {number + 1}: the gzip file is broken ({error}); "
            "expected a whole one, so copy or compress it again"
        ) from error


def _unzipped(file: IO[bytes], name: str) -> IO[bytes]:
    reader = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    if reader.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC) or name.endswith(".gz"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=reader))
    return reader
