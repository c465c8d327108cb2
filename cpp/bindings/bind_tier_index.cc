#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "core/tier_index.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

TierPolicy policy_from(const std::string& name) {
    if (name != "all" && name != "adaptive") {
        throw std::invalid_argument("admission is '" + name + "'; it is 'all' or 'adaptive'");
    }
    return name == "all" ? TierPolicy::all : TierPolicy::adaptive;
}

void init_index(TierIndex* self, Named<std::uint32_t, "slots"> slots,
                Named<std::uint32_t, "tokens_per_block"> tokens_per_block, Named<std::uint32_t, "hash_bits"> hash_bits,
                const std::string& admission) {
    new (self) TierIndex(slots, tokens_per_block, hash_bits, policy_from(admission));
}

TierSequenceId open_sequence(TierIndex& self, NamedLora lora_id, nb::handle salt, nb::handle extra_keys) {
    const std::string identity = serialise_identity(lora_id, read_salt(salt, {"salt"}));
    auto keys = read_extra_keys(extra_keys, {"extra_keys"});
    return without_gil([&] { return self.open(identity, std::move(keys)); });
}

void extend(TierIndex& self, TierSequenceId sequence, nb::handle tokens) {
    auto values = read_integers<TokenId>(tokens, {"extend, tokens"});
    without_gil([&] { self.extend(sequence, std::move(values)); });
}

std::optional<TierClaim> claim(TierIndex& self, TierSequenceId sequence, Named<std::uint32_t, "end"> end,
                               Named<std::uint32_t, "known"> known, nb::handle priorities, bool reused) {
    const auto given = read_integers<Priority>(priorities, {"claim, priorities"});
    return without_gil([&] { return self.claim(sequence, end, known, given, reused); });
}

std::vector<TierSlot> pin(TierIndex& self, TierSequenceId sequence, Named<std::uint32_t, "first"> first,
                          Named<std::uint32_t, "end"> end) {
    return without_gil([&] { return self.pin(sequence, first, end); });
}

template <auto method>
void with_slots(TierIndex& self, nb::handle slots) {
    const auto numbers = read_integers<TierSlot>(slots, {"slots"});
    without_gil([&] { (self.*method)(numbers); });
}

// Waits for the index's lock, like every other question.
std::string text_of(const TierIndex& self) {
    const TierIndexStats stats = without_gil([&] { return self.stats(); });
    return Repr("TierIndex")
        .add("slots", stats.slots)
        .add("tokens_per_block", self.tokens_per_block())
        .add("free", stats.free)
        .add("owned", stats.owned)
        .add("sequences", stats.sequences)
        .text();
}

void bind_tier_answers(nb::module_& m) {
    nb::class_<TierClaim>(m, "TierClaim",
                          "Slots that the caller must fill, for the blocks of a sequence from `first` on.")
        .def_ro("first", &TierClaim::first, "The number of the first block that was claimed.")
        .def_ro("slots", &TierClaim::slots, "The slots for that block and those after it.")
        .def_ro("declined", &TierClaim::declined,
                "Whether blocks are missing because they are not worth pushing others out.")
        .def("__repr__", [](const TierClaim& c) {
            return Repr("TierClaim").add("first", c.first).add("slots", c.slots).add("declined", c.declined).text();
        });
    nb::class_<TierIndexStats>(m, "TierIndexStats", "Slots now, and blocks evicted since the index was made.")
        .def_ro("slots", &TierIndexStats::slots, "All slots of the tier.")
        .def_ro("free", &TierIndexStats::free, "Slots that hold nothing.")
        .def_ro("owned", &TierIndexStats::owned, "Slots that are being filled, or pinned.")
        .def_ro("evicted", &TierIndexStats::evicted, "Blocks that made room for others, since the index was made.")
        .def_ro("sequences", &TierIndexStats::sequences, "Open sequences.")
        .def("__repr__", [](const TierIndexStats& s) {
            return Repr("TierIndexStats")
                .add("slots", s.slots)
                .add("free", s.free)
                .add("owned", s.owned)
                .add("evicted", s.evicted)
                .add("sequences", s.sequences)
                .text();
        });
}

}  // namespace

void bind_tier_index(nb::module_& m) {
    using namespace nb::literals;
    bind_tier_answers(m);
    nb::class_<TierIndex>(m, "TierIndex",
                          "The index of a tier that another program fills and reads. Each call costs only what is new.")
        .def("__init__", &init_index, "slots"_a, "tokens_per_block"_a, nb::kw_only(), "hash_bits"_a = 64,
             "admission"_a = "all",
             "hash_bits: fewer than 64 force collisions, for tests. admission says which blocks may push others out: "
             "'all', or 'adaptive', which admits only blocks that were asked for before whenever that would find more.")
        .def_prop_ro("slots", &TierIndex::slots, "All slots of the tier.")
        .def_prop_ro("tokens_per_block", &TierIndex::tokens_per_block, "Tokens that a block holds.")
        .def("open", &open_sequence, nb::kw_only(), "lora_id"_a = nb::none(), "salt"_a = nb::none(),
             "extra_keys"_a = nb::tuple(),
             nb::sig("def open(self, *, lora_id: int | None = None, salt: str | bytes | int | None = None, extra_keys: "
                     "Iterable[tuple[int, int, bytes]] = ()) -> int"),
             "Opens a sequence without tokens. Returns its number.")
        .def("extend", &extend, "sequence"_a, "tokens"_a,
             nb::sig("def extend(self, sequence: int, tokens: Any) -> None"),
             "Adds the tokens of the sequence's next whole blocks, as an array or a list like SequenceRequest's.")
        .def("close", &TierIndex::close, nb::call_guard<GilReleased>(), "sequence"_a,
             "Closes the sequence. Slots that it has claimed may still be committed.")
        .def("held", &TierIndex::held, nb::call_guard<GilReleased>(), "sequence"_a,
             "How many of the sequence's leading blocks can be read. They become the newest.")
        .def("claim", &claim, "sequence"_a, "end"_a, nb::kw_only(), "known"_a = 0, "priorities"_a = nb::tuple(),
             "reused"_a = false,
             nb::sig("def claim(self, sequence: int, end: int, *, known: int = 0, priorities: Any = (), reused: "
                     "bool = False) -> TierClaim | None"),
             "Claims slots for the blocks that are missing among the first `end`, as far as there is room. known: how "
             "many leading blocks were here once, or are elsewhere; they take free slots only. priorities: those of "
             "the last blocks before `end`. reused: somebody had the blocks before and wants them again, so they may "
             "push others out whatever admission is. None while another claim fills one of them.")
        .def("commit", &with_slots<&TierIndex::commit>, "slots"_a, nb::sig("def commit(self, slots: Any) -> None"),
             "The slots of one claim are filled, so its blocks can be found.")
        .def("abandon", &with_slots<&TierIndex::abandon>, "slots"_a, nb::sig("def abandon(self, slots: Any) -> None"),
             "The slots of one claim will not be filled.")
        .def("set_aside", &with_slots<&TierIndex::set_aside>, "slots"_a,
             nb::sig("def set_aside(self, slots: Any) -> None"),
             "The blocks of one claim will not be filled, as if abandoned. Their slots may still be written, so they "
             "stay until they are abandoned.")
        .def("pin", &pin, "sequence"_a, "first"_a, "end"_a,
             "Pins blocks first to end, as far as they can be read, and returns their slots. They stay until they are "
             "unpinned.")
        .def("unpin", &with_slots<&TierIndex::unpin>, "slots"_a, nb::sig("def unpin(self, slots: Any) -> None"),
             "Ends one pin of each slot.")
        .def("condemn", &with_slots<&TierIndex::condemn>, "slots"_a, nb::sig("def condemn(self, slots: Any) -> None"),
             "These pinned slots do not hold what was stored there. Nobody reads them again, nor the blocks that "
             "follow them.")
        .def(
            "drop", &TierIndex::drop, nb::call_guard<GilReleased>(),
            "Makes the index forget every block that is here or on its way. Pinned slots stay until they are unpinned.")
        .def("stats", &TierIndex::stats, nb::call_guard<GilReleased>(), "Slots now, and evictions so far.")
        .def("check_invariants", &TierIndex::check_invariants, nb::call_guard<GilReleased>(),
             "Recounts everything. Raises InvariantViolation if something is wrong.")
        .def("__repr__", &text_of);
}

}  // namespace kvfix::bindings
