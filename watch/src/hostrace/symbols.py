"""File, line and function of native frames, asked of a tool that reads debug information when the program has ended."""

import ctypes
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from hostrace.races import STACKS, Frame, Race

# Each prints as addr2line does. LLVM's is faster on large libraries.
TOOLS = (("llvm-symbolizer", "--output-style=GNU"), ("addr2line",))
ASKED = ("-a", "-C", "-f", "-i", "-e")
CURE = "C++ frames have no lines: neither llvm-symbolizer nor addr2line is in the path (packages llvm and binutils)"
LIMIT_S = 60.0  # for each module
UNKNOWN = re.compile(r"\?\?(:|$)")
PLACE = re.compile(r"(?P<file>.+):(?P<line>\d+)(?: \(discriminator \d+\))?")
PAGE = 4096
PT_LOAD = 1
Address = tuple[str, int]  # a module, and an offset in it


class Symbols:
    """What is known of native code; each address is asked for once."""

    def __init__(self) -> None:
        found = ((shutil.which(name), options) for name, *options in TOOLS)
        self._tool = next(([path, *options] for path, options in found if path is not None), None)
        self._known: dict[Address, tuple[Frame, ...]] = {}
        self.notes: list[str] = []

    def name(self, races: Iterable[Race]) -> None:
        """Give the native frames of the races what can be known of them."""
        stacks = [(race, name, list(_asked(race, name))) for race in races for name in STACKS]
        wanted: dict[str, dict[int, Frame]] = {}
        for offset, frame in (each for _, _, asked in stacks for each in asked):
            if (frame.module, offset) not in self._known:
                wanted.setdefault(frame.module, {})[offset] = frame
        for module, frames in wanted.items():
            self._ask(module, frames)
        for race, name, asked in stacks:
            native = (
                replace(known, offset=frame.offset)
                for offset, frame in asked
                for known in self._known[frame.module, offset]
            )
            setattr(race, name, replace(getattr(race, name), native=tuple(native)))
            if self._tool is None and asked and not getattr(race, name).python and CURE not in self.notes:
                self.notes.append(CURE)

    def _ask(self, module: str, frames: dict[int, Frame]) -> None:
        self._known |= {
            (module, offset): (replace(frame, function=demangled(frame.function)),) for offset, frame in frames.items()
        }
        base = link_base(Path(module))
        if self._tool is None or base is None:
            return
        command = [*self._tool, *ASKED, module, *(hex(base + offset) for offset in frames)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            self.notes.append(f"{module}: its frames have no lines: {self._tool[0]} took more than {LIMIT_S:.0f} s")
            return
        for address, places in answers(done.stdout.decode(errors="replace")):
            offset = address - base
            if offset in frames and places:
                self._known[module, offset] = tuple(
                    Frame(file, line, function or demangled(frames[offset].function), module, offset)
                    for function, file, line in places
                )


def answers(text: str) -> Iterator[tuple[int, list[tuple[str, str, int | None]]]]:
    """For each address the function, file and line there; those that were inlined come first."""
    for part in re.split(r"^(?=0x[0-9a-f]+$)", text, flags=re.MULTILINE):
        address, *lines = part.splitlines() or [""]
        if not address.startswith("0x"):
            continue
        places = []
        for function, place in zip(lines[::2], lines[1::2], strict=False):
            where = PLACE.fullmatch(place)
            line = int(where["line"]) if where and not UNKNOWN.match(place) else 0
            name = "" if UNKNOWN.match(function) else function
            if name or line:
                places.append((name, where["file"] if where and line else "", line or None))
        yield int(address, 16), places


def link_base(module: Path) -> int | None:
    """The address for which the module was linked, 0 for shared ones; None if it is no such file."""
    try:
        with module.open("rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":
                return None
            table, entry_bytes, entries = (
                struct.unpack_from("<Q", header, 32)[0],
                *struct.unpack_from("<HH", header, 54),
            )
            file.seek(table)
            loaded = [struct.unpack_from("<IIQQ", file.read(entry_bytes)) for _ in range(entries)]
    except (OSError, struct.error):
        return None
    return min((address // PAGE * PAGE for kind, _, _, address in loaded if kind == PT_LOAD), default=None)


def demangled(symbol: str) -> str:
    """As C++ writes it, where the C++ library is here."""
    if not symbol.startswith("_Z"):
        return symbol
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        free = ctypes.CDLL(None).free
    except OSError:
        return symbol
    demangle = runtime.__cxa_demangle
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(-1)
    made = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not made:
        return symbol
    text = ctypes.string_at(made).decode(errors="replace")
    free(ctypes.c_void_p(made))
    return text


def _asked(race: Race, name: str) -> Iterator[tuple[int, Frame]]:
    """For each frame of the stack the offset of its instruction. A return address is behind that; only an instruction
    that faulted is itself meant."""
    faulted = name == "touch_stack" and not race.how
    for frame in getattr(race, name).native:
        yield frame.offset - (0 if faulted else 1), frame
        faulted = False
