"""Pool sizes as users write them: a number of blocks, or bytes with a unit."""

import re
from typing import NamedTuple

from trtllm_kvfix.errors import SettingsError

UNIT_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
BLOCKS_MAX = 2**30
DIGITS_MAX = 18  # a number of 400 is infinite as a float
_UNIT_BYTES = {name.upper(): count for name, count in UNIT_BYTES.items()}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


class Size(NamedTuple):
    number: float
    unit_bytes: int | None  # None: the number counts blocks


class ModelShape(NamedTuple):
    """The numbers that decide how many bytes a token's keys and values take."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int

    def bytes_per_block(self, tokens_per_block: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes * tokens_per_block


def parse_size(text: str | int, wanted: str = "a number of blocks, or bytes with a unit such as 40GiB") -> Size:
    """Raises ValueError without naming where the text came from: the caller knows that, and what it wants."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"write {wanted}")
    number, unit = match.groups()
    if len(number) > DIGITS_MAX:
        raise ValueError(f"a size has at most {DIGITS_MAX} digits")
    if not unit:
        if "." in number:
            raise ValueError("a number of blocks is whole; for bytes add a unit such as GiB")
        return Size(int(number), None)
    if unit.upper() not in _UNIT_BYTES:
        raise ValueError(f"unknown unit {unit}, known are {', '.join(UNIT_BYTES)}")
    return Size(float(number), _UNIT_BYTES[unit.upper()])


def blocks_of(text: str | int, bytes_per_block: int | None, what: str) -> int:
    """The number of whole blocks that a size means; `what` names the option in an error."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise SettingsError(f"{what} is {text!r}: {error}") from error
    if size.unit_bytes is None:
        blocks = int(size.number)
    elif bytes_per_block is None:
        raise SettingsError(
            f"{what} is {text!r}: bytes need the size of a block; give --bytes-per-block, "
            "or --layers, --kv-heads and --head-dim of the model"
        )
    else:
        blocks = int(size.number * size.unit_bytes) // bytes_per_block
    if blocks > BLOCKS_MAX:
        raise SettingsError(f"{what} is {text!r}: these are {blocks:,} blocks, at most {BLOCKS_MAX:,} can be modelled")
    return blocks


def bytes_text(count: int) -> str:
    """`count` bytes in the largest binary unit that keeps the number at 1 or more."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:,.1f} {unit}"
    return f"{count} B"
