"""Ranks share the work: each has its part of every layer, and all layers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mapping:
    world_size: int = 1
    rank: int = 0
    tp_size: int = 1
    pp_size: int = 1
