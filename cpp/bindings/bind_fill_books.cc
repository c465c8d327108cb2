// The canary's books. Calls are too short to give the GIL away.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "canary/fill_books.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using canary::FillBooks;
using canary::Slot;
using NamedPlace = Named<std::uint64_t, "place">;
using NamedSlot = Named<std::int32_t, "slot">;
using NamedBlocks = Named<std::uint64_t, "blocks">;
using NamedBegin = Named<std::uint64_t, "begin">;
using NamedEnd = Named<std::uint64_t, "end">;
using NamedFree = Named<std::uint32_t, "free">;

canary::Copy copy_from(const std::string& kind) {
    constexpr std::array kKinds = {"onboard", "offload", "copy"};
    for (std::size_t number = 0; number < kKinds.size(); ++number) {
        if (kind == kKinds[number]) {
            return static_cast<canary::Copy>(number);
        }
    }
    throw std::invalid_argument("kind is '" + kind + "'; it is 'onboard', 'offload' or 'copy'");
}

// Items of a tuple that has so many, which lives as long as they are used.
template <std::size_t count>
std::array<nb::handle, count> items_of(nb::handle given, const char* name) {
    if (!PyTuple_Check(given.ptr()) || PyTuple_Size(given.ptr()) != Py_ssize_t{count}) {
        const std::string wanted = std::string(name) + ": expected tuples of " + std::to_string(count) + " items, got ";
        throw nb::type_error((wanted + shown(given)).c_str());
    }
    std::array<nb::handle, count> items;
    for (std::size_t at = 0; at < count; ++at) {
        items[at] = PyTuple_GetItem(given.ptr(), static_cast<Py_ssize_t>(at));
    }
    return items;
}

std::vector<canary::Write> read_writes(nb::handle given) {
    std::vector<canary::Write> writes;
    for (const nb::handle each : given) {
        const auto [request, slots, begin, end, accepted] = items_of<5>(each, "writes");
        writes.push_back(
            {.request = read_integer<std::uint64_t>(request, {"writes, request"}),
             .slots = slots.is_none() ? std::nullopt : std::optional(read_integers<Slot>(slots, {"writes, slots"})),
             .begin = read_integer<std::uint64_t>(begin, {"writes, begin"}),
             .end = read_integer<std::uint64_t>(end, {"writes, end"}),
             .accepted = read_integer<std::uint64_t>(accepted, {"writes, accepted"})});
    }
    return writes;
}

std::vector<canary::Progress> read_progress(nb::handle given) {
    std::vector<canary::Progress> all;
    for (const nb::handle each : given) {
        const auto [request, begin, end, slots] = items_of<4>(each, "parts");
        all.push_back({.request = read_integer<std::uint64_t>(request, {"parts, request"}),
                       .begin = read_integer<std::uint64_t>(begin, {"parts, begin"}),
                       .end = read_integer<std::uint64_t>(end, {"parts, end"}),
                       .slots = read_integers<Slot>(slots, {"parts, slots"})});
    }
    return all;
}

// As DigestRing.arrived() gives them.
std::vector<std::vector<std::uint64_t>> read_digests(nb::handle given) {
    std::vector<std::vector<std::uint64_t>> sendings;
    for (const nb::handle sending : given) {
        std::vector<std::uint64_t>& digests = sendings.emplace_back();
        for (const nb::handle block : sending) {
            const auto bytes = nb::cast<nb::bytes>(block);
            const std::size_t before = digests.size();
            digests.resize(before + bytes.size() / sizeof(std::uint64_t));
            std::memcpy(digests.data() + before, bytes.c_str(), (digests.size() - before) * sizeof(std::uint64_t));
        }
    }
    return sendings;
}

nb::list tuples_of(const std::vector<canary::Changed>& changed) {
    nb::list found;
    for (const canary::Changed& one : changed) {
        found.append(nb::make_tuple(one.slot, one.layers, canary::kOccasions[static_cast<std::size_t>(one.occasion)],
                                    one.filler, one.reader, one.right_at, one.wrong_at));
    }
    return found;
}

nb::list tuples_of(const std::vector<canary::Unfilled>& unfilled) {
    nb::list found;
    for (const canary::Unfilled& one : unfilled) {
        found.append(nb::make_tuple(one.slot, one.filler, one.reader));
    }
    return found;
}

void init_books(FillBooks* self, Named<std::uint32_t, "tokens_per_block"> tokens_per_block,
                Named<std::uint32_t, "layers"> layers, Named<std::uint32_t, "due_max"> due_max,
                Named<std::uint32_t, "step_looks_max"> step_looks_max,
                Named<std::uint32_t, "blocks_per_step"> blocks_per_step, NamedId<"seed"> seed, bool knows_all) {
    new (self) FillBooks({.tokens_per_block = tokens_per_block,
                          .layers = layers,
                          .knows_all = knows_all,
                          .looks = {.due = due_max, .of_step = step_looks_max, .live = blocks_per_step},
                          .seed = seed});
}

nb::dict compared(const FillBooks& self) {
    nb::dict found;
    for (std::size_t number = 0; number < canary::kOccasions.size(); ++number) {
        found[canary::kOccasions[number]] = self.looks().compared()[number];
    }
    return found;
}

using BooksClass = nb::class_<FillBooks>;

void bind_blocks(BooksClass& c) {
    using namespace nb::literals;
    c.def(
         "moved",
         [](FillBooks& self, const std::string& kind, NamedSlot source, NamedSlot target,
            Named<std::uint64_t, "tokens"> tokens) { self.moved(copy_from(kind), source, target, tokens); },
         "kind"_a, "source"_a, "target"_a, "tokens"_a,
         "A copy of the leading tokens of a block has been enqueued: 'onboard', 'offload' or 'copy'.")
        .def(
            "admitted",
            [](FillBooks& self, NamedRequest request_id, nb::handle slots, Named<std::uint64_t, "reused"> reused,
               bool part_is_copied) {
                return tuples_of(
                    self.admitted(request_id, read_integers<Slot>(slots, {"slots"}), reused, part_is_copied));
            },
            "request_id"_a, "slots"_a, "reused"_a, "part_is_copied"_a = false,
            nb::sig("def admitted(self, request_id: int, slots: Any, reused: int, part_is_copied: bool = False) -> "
                    "list[tuple[int, int | None, int]]"),
            "A request has its blocks, and takes the first `reused` positions as they are. part_is_copied: a block "
            "inside which they end is a copy of its own. Returns blocks that are reused and that nobody was seen to "
            "fill so far: slot, who began, and who reuses it.")
        .def(
            "replaced",
            [](FillBooks& self, NamedRequest request_id, NamedPlace place, NamedSlot slot) {
                return tuples_of(self.replaced(request_id, place, slot));
            },
            "request_id"_a, "place"_a, "slot"_a,
            nb::sig("def replaced(self, request_id: int, place: int, slot: int) -> list[tuple[int, int | None, int]]"),
            "An equal block of another takes the place of its own; -1: a window has passed it. Returns what admitted() "
            "does.")
        .def(
            "regrown",
            [](FillBooks& self, NamedRequest request_id, NamedPlace place, NamedSlot slot) {
                self.regrown(request_id, place, slot);
            },
            "request_id"_a, "place"_a, "slot"_a,
            "It has given back a block that it had not begun, and got another one for the same positions.")
        .def(
            "shrunk",
            [](FillBooks& self, NamedRequest request_id, NamedBlocks blocks) { self.shrunk(request_id, blocks); },
            "request_id"_a, "blocks"_a, "It has given back the blocks behind these.")
        .def(
            "left",
            [](FillBooks& self, NamedRequest request_id, Named<std::uint64_t, "places_known"> places_known) {
                self.left(request_id, places_known);
            },
            "request_id"_a, "places_known"_a,
            "It lets go of its slots. Only of its leading blocks it is known where they were.")
        .def(
            "came_back",
            [](FillBooks& self, NamedRequest request_id, nb::handle slots) {
                self.came_back(request_id, read_integers<Slot>(slots, {"slots"}));
            },
            "request_id"_a, "slots"_a, nb::sig("def came_back(self, request_id: int, slots: Any) -> None"),
            "It has its blocks again, perhaps in other slots.");
}

void bind_holders(BooksClass& c) {
    using namespace nb::literals;
    c.def(
         "forget", [](FillBooks& self, nb::handle slots) { self.forget(read_integers<Slot>(slots, {"slots"})); },
         "slots"_a, nb::sig("def forget(self, slots: Any) -> None"), "What they hold may change unheard.")
        .def(
            "hold",
            [](FillBooks& self, nb::handle slots, nb::handle numbers) {
                self.hold(read_integers<Slot>(slots, {"slots"}), read_integers<Slot>(numbers, {"numbers"}));
            },
            "slots"_a, "numbers"_a = nb::tuple(), nb::sig("def hold(self, slots: Any, numbers: Any = ()) -> None"),
            "One more active request has these slots. numbers: those of its blocks, where they move unheard.")
        .def(
            "let_go",
            [](FillBooks& self, nb::handle slots, nb::handle numbers) {
                self.let_go(read_integers<Slot>(slots, {"slots"}), read_integers<Slot>(numbers, {"numbers"}));
            },
            "slots"_a, "numbers"_a = nb::tuple(), nb::sig("def let_go(self, slots: Any, numbers: Any = ()) -> None"),
            "One less has them. What none has is forgotten, since it may change unheard, or kept by its number.");
}

void bind_steps(BooksClass& c) {
    using namespace nb::literals;
    c.def(
         "grown",
         [](FillBooks& self, NamedRequest request_id, nb::handle slots) {
             self.grown(request_id, read_integers<Slot>(slots, {"slots"}));
         },
         "request_id"_a, "slots"_a, nb::sig("def grown(self, request_id: int, slots: Any) -> None"),
         "It has got further blocks, which a step or a load will write.")
        .def(
            "loaded",
            [](FillBooks& self, NamedRequest request_id, NamedBegin begin, NamedEnd end) {
                self.loaded(request_id, begin, end);
            },
            "request_id"_a, "begin"_a, "end"_a,
            "A load that wrote these positions is over; or steps wrote them, and they are kept for certain.")
        .def(
            "went_on", [](FillBooks& self, nb::handle parts, bool holds) { self.went_on(read_progress(parts), holds); },
            "parts"_a, "holds"_a = false,
            nb::sig("def went_on(self, parts: Iterable[tuple[int, int, int, Any]], holds: bool = False) -> None"),
            "The same of many requests, from one position to another; then each has got further blocks in these slots. "
            "holds: and holds them.")
        .def(
            "step",
            [](FillBooks& self, NamedId<"number"> number, nb::handle digests, nb::handle writes, NamedFree free) {
                const auto changed = self.arrived(read_digests(digests));
                return nb::make_tuple(tuples_of(changed), self.step(number, read_writes(writes), free));
            },
            "number"_a, "digests"_a, "writes"_a, "free"_a,
            nb::sig("def step(self, number: int, digests: Iterable[Iterable[bytes]], writes: "
                    "Iterable[tuple[int, Any | None, int, int, int]], free: int) -> "
                    "tuple[list[tuple[int, list[int], str, int | None, int | None, int, int]], list[int]]"),
            "Digests have arrived, and a step has been enqueued. A write is a request, its slots from that of the "
            "first written position on or None where they are known, the first position, the one behind the last, and "
            "the one below which all are kept for certain. Returns what arrived() does, and the slots whose digests "
            "are wanted behind the step, at most `free`.")
        .def(
            "arrived",
            [](FillBooks& self, nb::handle digests) { return tuples_of(self.arrived(read_digests(digests))); },
            "digests"_a,
            nb::sig("def arrived(self, digests: Iterable[Iterable[bytes]]) -> "
                    "list[tuple[int, list[int], str, int | None, int | None, int, int]]"),
            "As DigestRing gives them. Returns blocks that are not what was filled: slot, numbers of the layers that "
            "differ, occasion, who filled it, who reuses it, the step behind which it was right, and that behind which "
            "it was not.")
        .def(
            "released",
            [](FillBooks& self, NamedRequest request_id, NamedFree free) { return self.released(request_id, free); },
            "request_id"_a, "free"_a,
            "The request has ended, or waits again. Returns slots whose digests are wanted at once, at most `free`.")
        .def(
            "lost", [](FillBooks& self, NamedRequest request_id) { self.lost(request_id); }, "request_id"_a,
            "It has ended unheard: its slots may be others' by now.");
}

void bind_states(BooksClass& c) {
    using namespace nb::literals;
    c.def(
         "slots_of",
         [](const FillBooks& self, NamedRequest request_id, Named<std::uint64_t, "first"> first) {
             const auto slots = self.slots_of(request_id, first);
             return std::vector<Slot>(slots.begin(), slots.end());
         },
         "request_id"_a, "first"_a = 0, "The slots of a live request, from that of its block `first` on.")
        .def(
            "has_changed",
            [](const FillBooks& self, NamedSlot slot) {
                const canary::Fill* fill = self.fill_at(slot);
                return fill != nullptr && fill->has_changed;
            },
            "slot"_a, "Whether the block there was not what was filled when it was last looked at.")
        .def_prop_ro("compared", &compared, nb::sig("def compared(self) -> dict[str, int]"),
                     "Looks that were compared, by occasion.")
        .def_prop_ro(
            "taken", [](const FillBooks& self) { return self.looks().taken(); }, "Blocks whose first digest was taken.")
        .def_prop_ro(
            "missed", [](const FillBooks& self) { return self.looks().missed(); },
            "Looks that were due, and came too late or never.")
        .def("__repr__", [](const FillBooks& self) {
            return Repr("FillBooks").add("fills", self.fills()).add("live", self.live()).text();
        });
}

}  // namespace

void bind_fill_books(nb::module_& m) {
    using namespace nb::literals;
    BooksClass books(m, "FillBooks",
                     "What each slot was filled with, and the looks that find out whether complete blocks have "
                     "changed. For one thread alone.");
    books.def("__init__", &init_books, "tokens_per_block"_a, "layers"_a, nb::kw_only(), "due_max"_a, "step_looks_max"_a,
              "blocks_per_step"_a, "seed"_a, "knows_all"_a = true,
              "layers: digests of a block. due_max: looks that may wait. step_looks_max: in a step, at blocks to which "
              "something has happened. blocks_per_step: others. knows_all: no block leaves the device and comes back "
              "unheard.");
    bind_blocks(books);
    bind_holders(books);
    bind_steps(books);
    bind_states(books);
}

}  // namespace kvfix::bindings
