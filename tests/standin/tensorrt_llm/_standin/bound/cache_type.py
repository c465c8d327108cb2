"""Whose keys and values a cache holds."""

import enum


class CacheType(enum.Enum):
    SELF = "self"
    SELFKONLY = "self, K only"
    CROSS = "cross"
