"""The words of a report that more than one module of `doctor` knows. They need no extension, which may be missing."""

from enum import Enum

HOLDS = "holds"  # what is said of a self-test


class Lack(Enum):
    """Why a server that is started from here would run without a fix that it needs, or may need."""

    UNDECIDED = "undecided"  # the probe cannot tell whether the fix fits
    SWITCHED_OFF = "switched-off"
    UNHOOKED = "unhooked"
