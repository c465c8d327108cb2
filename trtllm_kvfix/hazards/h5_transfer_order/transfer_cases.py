"""The cases of H5: stores and loads without an edge between the streams and with one, for both source orders."""

from functools import partial
from typing import NamedTuple

from trtllm_kvfix.hazards.case import Case, ControlKind, Side
from trtllm_kvfix.hazards.h5_transfer_order.transfers import (
    LoadBeforeReader,
    LoadBehindReader,
    LoadBehindZeroing,
    Ordered,
    StoreBeforeWriter,
    StoreBehindWriter,
    TransferArm,
    Unordered,
)
from trtllm_kvfix.native import Device

ORDERS = ("any", "stream")  # when the driver may read the sources of a batched copy: from the call on, or in its turn


def build(
    arm: type[TransferArm], mover: type[Unordered] | type[Ordered], order: str, device: Device, seed: int
) -> TransferArm:
    return arm(device, seed, partial(mover, order=order))


def without_edge(arm: type[TransferArm], order: str, meanwhile: str, effect: str) -> Side:
    how = f"As in connectors before their fix: no event orders the streams. Source order {order.upper()}."
    return Side(partial(build, arm, Unordered, order), how, meanwhile, effect)


def with_edge(arm: type[TransferArm], order: str, effect: str, *, how: str = "An event orders the streams.") -> Side:
    meanwhile = "an unordered copy, issued later, is over: only the edge holds this one"
    return Side(partial(build, arm, Ordered, order), f"{how} Source order {order.upper()}.", meanwhile, effect)


class Words(NamedTuple):
    name: str
    variant: str
    arm: type[TransferArm]
    title: str
    meanwhile: str  # in the control
    corrupt: str
    intact: str
    orders: tuple[str, ...] = ORDERS


WORDS = (
    Words(
        "store-order",
        "writer",
        StoreBehindWriter,
        "Store: blocks are saved while the kernel that writes them is queued",
        "the store is over, and nothing has written the blocks yet",
        "the kernel writes the blocks; what was saved is what was there before",
        "the kernel writes the blocks, then the store saves them",
    ),
    Words(
        "store-order",
        "early writer",
        StoreBeforeWriter,
        "Store: blocks are written for their next owner while the store of their contents is queued",
        "the kernel of the next owner is over, and nothing has been saved yet",
        "the store saves what belongs to the next owner",
        "the store saves the blocks, then the next owner's kernel writes them",
        orders=("stream",),  # ANY lets the driver read the blocks early, which saves a control now and then
    ),
    Words(
        "load-order",
        "reader",
        LoadBehindReader,
        "Load: blocks are filled while attention that reads their last contents is queued",
        "the load is over, and nobody has read the blocks yet",
        "attention runs and reads what was loaded for somebody else",
        "attention reads the blocks, then the load fills them",
    ),
    Words(
        "load-order",
        "zeroing",
        LoadBehindZeroing,
        "Load: blocks are filled while the kernel that clears them is queued",
        "the load is over, and the blocks have not been cleared yet",
        "the kernel clears the blocks; what was loaded is gone",
        "the kernel clears the blocks, then the load fills them",
    ),
    Words(
        "load-order",
        "early reader",
        LoadBeforeReader,
        "Load: attention reads the blocks while the load that fills them is queued",
        "attention is over, and nothing has been loaded yet",
        "the load fills the blocks; attention has read what was there before",
        "the load fills the blocks, then attention reads them",
    ),
)


def case(words: Words, order: str) -> Case:
    # Where the source itself is being written, the fix needs STREAM as well, whatever the control took.
    needs_stream = words.arm is StoreBehindWriter
    half = with_edge(
        words.arm,
        "any",
        "the kernel writes, then the store runs, unless its sources were read early",
        how="An event orders the streams, but the driver may read the sources of the store before their turn.",
    )
    return Case(
        name=words.name,
        variant=f"{words.variant}, {order}",
        hazard="H5",
        title=words.title,
        call=f"the {words.name.removesuffix('-order')} of the blocks is issued",
        control_kind=ControlKind.NO_EVENT,
        control=without_edge(words.arm, order, words.meanwhile, words.corrupt),
        fixed=with_edge(words.arm, "stream" if needs_stream else order, words.intact),
        half=half if needs_stream and order == "any" else None,
    )


CASES = tuple(case(words, order) for words in WORDS for order in words.orders)
