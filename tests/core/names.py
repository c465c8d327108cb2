"""Core ids and slot numbers are matched with the blocks of the model.

The core may choose any free block record and any free slot, so nothing is predicted: a number is learnt where it is
first seen, and from then on it must stay the same for as long as the model says that the block, or its tenancy of the
slot, lives. Two that live at once may never share a number.
"""

from .model import Block
from .model.state import State, Window
from .model.values import TIERS, Tier

Place = tuple[int | None, Tier, int]  # window size, tier, slot number


class Names:
    def __init__(self, state: State) -> None:
        self.state = state
        self.blocks: dict[int, Block] = {}  # by core id, the last block that had it
        self.ids: dict[int, int] = {}  # by the block's serial
        self.slots: dict[int, Place] = {}  # by the tenancy's serial
        self.tenants: dict[Place, int] = {}  # by place, the last tenancy that had it

    def alive(self, block: Block) -> bool:
        return self.state.window_of(block) is not None

    def tenancies(self, window: Window) -> set[int]:
        return {slot for block in window.blocks for tier in TIERS if (slot := block.slots[tier]) is not None}

    def learn_block(self, block: Block, block_id: int) -> None:
        known = self.ids.setdefault(block.serial, block_id)
        assert known == block_id, f"a block was called {known} and is now called {block_id}"
        former = self.blocks.get(block_id)
        assert former is None or former is block or not self.alive(former), f"id {block_id} means two blocks"
        self.blocks[block_id] = block

    def learn_slot(self, window: Window, tier: Tier, tenancy: int | None, number: int) -> None:
        assert tenancy is not None, f"the core says slot {number} of {tier}, the model says none"
        assert 0 <= number < window.capacity(tier)
        place = (window.shape.size, tier, number)
        known = self.slots.setdefault(tenancy, place)
        assert known == place, f"a slot was {known} and has become {place} under its block"
        former = self.tenants.get(place)
        living = self.tenancies(window)
        if former is None or former not in living:
            self.tenants[place] = tenancy
        else:
            assert former == tenancy or tenancy not in living, f"{place} holds two blocks"

    def block(self, block_id: int) -> Block:
        return self.blocks[block_id]

    def id_of(self, block: Block) -> int:
        return self.ids[block.serial]

    def known_ids(self) -> list[int]:
        return sorted(self.blocks)
