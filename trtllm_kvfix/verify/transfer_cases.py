"""The cases of H5: stores and loads without an edge between the streams and with one, for both source orders."""

from functools import partial
from typing import NamedTuple

from trtllm_kvfix.native import Device
from trtllm_kvfix.verify.case import Case, Side
from trtllm_kvfix.verify.transfers import (
    LoadBeforeReader,
    LoadBehindReader,
    LoadBehindZeroing,
    Ordered,
    StoreBehindWriter,
    TransferArm,
    Unordered,
)

ORDERS = ("any", "stream")  # when the driver may read the sources of a batched copy: from the call on, or in its turn


def build(
    arm: type[TransferArm], mover: type[Unordered] | type[Ordered], order: str, device: Device, seed: int
) -> TransferArm:
    return arm(device, seed, partial(mover, order=order))


def without_edge(arm: type[TransferArm], order: str, meanwhile: str, effect: str) -> Side:
    how = f"As upstream did it: the streams know nothing of each other. Source order {order.upper()}."
    return Side(partial(build, arm, Unordered, order), how, meanwhile, effect)


def with_edge(arm: type[TransferArm], order: str, effect: str, *, how: str = "An event orders the streams.") -> Side:
    meanwhile = "an unordered copy, issued later, is over: only the edge holds this one"
    return Side(partial(build, arm, Ordered, order), f"{how} Source order {order.upper()}.", meanwhile, effect)


def store_case(order: str) -> Case:
    half = with_edge(
        StoreBehindWriter,
        "any",
        "the kernel writes, then the store runs, unless its sources were read early",
        how="An event orders the streams, but the driver may read the sources of the store before their turn.",
    )
    return Case(
        name="store-order",
        variant=order,
        hazard="H5",
        title="Store: blocks are saved while the kernel that writes them is queued",
        call="the store of the blocks to the host is issued",
        control=without_edge(
            StoreBehindWriter,
            order,
            "the store is over, and nothing has written the blocks yet",
            "the kernel writes the blocks; what was saved is what was there before",
        ),
        # Sources of a store are being written, so it takes STREAM, whatever the control took.
        fixed=with_edge(StoreBehindWriter, "stream", "the kernel writes the blocks, then the store saves them"),
        half=half if order == "any" else None,
    )


class LoadWords(NamedTuple):
    arm: type[TransferArm]
    variant: str
    title: str
    meanwhile: str
    corrupt: str
    intact: str


LOADS = (
    LoadWords(
        LoadBehindReader,
        "reader",
        "Load: blocks are filled while attention that reads their last contents is queued",
        "the load is over, and nobody has read the blocks yet",
        "attention runs and reads what was loaded for somebody else",
        "attention reads the blocks, then the load fills them",
    ),
    LoadWords(
        LoadBehindZeroing,
        "zeroing",
        "Load: blocks are filled while the kernel that clears them is queued",
        "the load is over, and the blocks have not been cleared yet",
        "the kernel clears the blocks; what was loaded is gone",
        "the kernel clears the blocks, then the load fills them",
    ),
    LoadWords(
        LoadBeforeReader,
        "early reader",
        "Load: attention reads the blocks while the load that fills them is queued",
        "attention is over, and nothing has been loaded yet",
        "the load fills the blocks; attention has read what was there before",
        "the load fills the blocks, then attention reads them",
    ),
)


def load_case(words: LoadWords, order: str) -> Case:
    # The source of a load is host memory that nobody writes, so either order will do with an edge.
    return Case(
        name="load-order",
        variant=f"{words.variant}, {order}",
        hazard="H5",
        title=words.title,
        call="the load of the blocks from the host is issued",
        control=without_edge(words.arm, order, words.meanwhile, words.corrupt),
        fixed=with_edge(words.arm, order, words.intact),
    )


CASES = (*map(store_case, ORDERS), *(load_case(words, order) for words in LOADS for order in ORDERS))
