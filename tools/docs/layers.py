"""The picture of the packages in docs/design.md: each stands over those that it imports.

An arrow that follows from others is left out. What lies in one module without a package of its own (errors, settings,
log and the like) is left out as well, but what is imported through it is shown.
"""

from collections.abc import Iterator, Mapping
from html import escape
from itertools import takewhile

from tests.layers import PACKAGE, ROOT, table
from tools.docs.svg import MARGIN, picture, text

FILE = ROOT / "docs" / "layers.svg"
SHOWN_MODULES = {"native", "process", "subclasses"}
WIDTH, HEIGHT = 156, 34  # of a box
ACROSS, DOWN = 36, 44  # from box to box
SAYS = {
    "native": "the C++ core",
    "metrics": "what fixes count",
    "blocks": "what holds what",
    "events": "for routers",
    "staging": "memory until its fence",
    "overlay": "how fixes arrive",
    "offload": "the host tier",
    "hazards": "each with scenarios",
    "managers": "ours in upstream",
    "fixes": "one room each",
    "canary": "has KV changed?",
    "engine": "a small one",
    "subclasses": "for own programs",
    "process": "on and off",
    "tools": "the commands",
}


class Graph:
    def __init__(self, known: Mapping[str, frozenset[str]]) -> None:
        self._known = known
        self.names = [
            each for each in known if each in SHOWN_MODULES or (ROOT / PACKAGE / each / "__init__.py").exists()
        ]

    def below(self, name: str) -> set[str]:
        """All that it imports, directly or not."""
        found: set[str] = set()
        above = set(takewhile(name.__ne__, self._known))  # `native` and `errors` import each other
        for each in self._known[name] & above:
            found |= {each} | self.below(each)
        return found

    def arrows(self, name: str) -> list[str]:
        below = self.below(name) & set(self.names)
        return [each for each in self.names if each in below and not any(each in self.below(other) for other in below)]

    def level(self, name: str) -> int:
        return 1 + max((self.level(each) for each in self.arrows(name)), default=-1)


def drawn() -> str:
    graph = Graph(table((ROOT / "docs" / "design.md").read_text()))
    rows: dict[int, list[str]] = {}
    for name in graph.names:
        rows.setdefault(graph.level(name), []).append(name)
    top, widest = max(rows), max(map(len, rows.values()))
    width = MARGIN * 2 + widest * WIDTH + (widest - 1) * ACROSS
    at: dict[str, tuple[float, float]] = {}  # the middle of a box's upper edge
    for level, names in rows.items():
        for number, name in enumerate(names):
            x = width / 2 + (number - (len(names) - 1) / 2) * (WIDTH + ACROSS)
            at[name] = (x, MARGIN + (top - level) * (HEIGHT + DOWN))
    parts = [*lines(graph, at), *(part for name, place in at.items() for part in box(name, *place))]
    height = MARGIN * 2 + (top + 1) * HEIGHT + top * DOWN
    return picture(width, height, "The packages: each stands over those that it imports", parts)


def lines(graph: Graph, at: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    for name, (x, y) in at.items():
        for each in graph.arrows(name):
            to_x, to_y = at[each]
            yield (
                f'<line x1="{x:g}" y1="{y + HEIGHT:g}" x2="{to_x:g}" y2="{to_y:g}" style="stroke: var(--soft)">'
                f"<title>{escape(f'{name} imports {each}')}</title></line>"
            )


def box(name: str, x: float, y: float) -> Iterator[str]:
    yield f'<rect class="slot" x="{x - WIDTH / 2:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
    yield text(x, y + 14, name, "title", "middle")
    yield text(x, y + 29, SAYS[name], "soft", "middle")
