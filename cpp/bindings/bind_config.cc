#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "bindings/wide_integers.h"
#include "core/config.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using BlockCounts = std::variant<std::uint32_t, std::map<std::uint32_t, std::uint32_t>>;

BlockCounts read_counts(nb::handle given, const char* field) {
    if (!nb::isinstance<nb::dict>(given)) {
        return read_integer<std::uint32_t>(given, {field});
    }
    std::map<std::uint32_t, std::uint32_t> by_window;
    for (const auto& [window, blocks] : nb::borrow<nb::dict>(given)) {
        by_window[read_integer<std::uint32_t>(window, {field})] = read_integer<std::uint32_t>(blocks, {field});
    }
    return by_window;
}

// The count for one window: the number for all windows, or the dict's entry.
std::uint32_t blocks_of(const BlockCounts& counts, WindowSize window, const char* field) {
    if (const auto* same = std::get_if<std::uint32_t>(&counts)) {
        return *same;
    }
    const auto& by_window = std::get<1>(counts);
    const auto found = window ? by_window.find(*window) : by_window.end();
    if (found == by_window.end()) {
        throw std::invalid_argument(std::string(field) + " is a dict without an entry for window " +
                                    (window ? std::to_string(*window) : "None (give one int for full attention)"));
    }
    return found->second;
}

void check_keys(const BlockCounts& counts, const std::vector<std::uint32_t>& sizes, const char* field) {
    if (const auto* by_window = std::get_if<1>(&counts)) {
        for (const auto& [size, blocks] : *by_window) {
            if (std::ranges::find(sizes, size) == sizes.end()) {
                throw std::invalid_argument(std::string(field) + " names window " + std::to_string(size) +
                                            ", which is not in window_sizes");
            }
        }
    }
}

std::vector<WindowConfig> make_windows(const std::optional<std::vector<std::uint32_t>>& sizes,
                                       const BlockCounts& primary, const BlockCounts& host) {
    if (!sizes) {
        return {{std::nullopt, blocks_of(primary, std::nullopt, "blocks_primary"),
                 blocks_of(host, std::nullopt, "blocks_host")}};
    }
    check_keys(primary, *sizes, "blocks_primary");
    check_keys(host, *sizes, "blocks_host");
    std::vector<WindowConfig> windows;
    for (const std::uint32_t size : *sizes) {
        windows.push_back({size, blocks_of(primary, size, "blocks_primary"), blocks_of(host, size, "blocks_host")});
    }
    return windows;
}

std::optional<std::vector<std::uint32_t>> window_sizes(const BlockManagerConfig& config) {
    if (!config.windows.front().window_size) {
        return std::nullopt;
    }
    std::vector<std::uint32_t> sizes;
    for (const WindowConfig& window : config.windows) {
        sizes.push_back(*window.window_size);
    }
    return sizes;
}

BlockCounts counts(const BlockManagerConfig& config, std::uint32_t WindowConfig::* field) {
    if (!config.windows.front().window_size) {
        return config.windows.front().*field;
    }
    std::map<std::uint32_t, std::uint32_t> by_window;
    for (const WindowConfig& window : config.windows) {
        by_window[*window.window_size] = window.*field;
    }
    return by_window;
}

HostAdmission host_admission_from(const std::string& name) {
    if (name != "all" && name != "adaptive") {
        throw std::invalid_argument("host_admission is '" + name + "'; it is 'all' or 'adaptive'");
    }
    return name == "all" ? HostAdmission::all : HostAdmission::adaptive;
}

std::string_view name_of(HostAdmission admission) { return admission == HostAdmission::all ? "all" : "adaptive"; }

Secret seed_from(nb::handle given) {
    if (given.is_none()) {
        return drawn_seed();
    }
    const auto words = words_of(given);
    if (!words) {
        throw std::invalid_argument("seed: expected an int, 0 to 2**128 - 1, or None to draw one; got " +
                                    (PyLong_Check(given.ptr()) ? "another number" : shown(given)));
    }
    return {words->first, words->second};
}

Hash128 seed_of(const BlockManagerConfig& config) { return {config.seed.low, config.seed.high}; }

// Includes the seed, so a reader of a pickled config knows it.
nb::dict keywords_of(const BlockManagerConfig& config) {
    nb::dict out;
    out["tokens_per_block"] = config.tokens_per_block;
    out["blocks_primary"] = counts(config, &WindowConfig::blocks_primary);
    out["blocks_host"] = counts(config, &WindowConfig::blocks_host);
    out["window_sizes"] = window_sizes(config);
    out["max_beam_width"] = config.beam_width_max;
    out["block_reuse"] = config.block_reuse;
    out["partial_reuse"] = config.partial_reuse;
    out["copy_on_partial_reuse"] = config.copy_on_partial_reuse;
    out["offload_priority_min"] = config.offload_priority_min;
    out["host_admission"] = std::string(name_of(config.host_admission));
    out["events_max"] = config.events_max;
    out["hash_bits"] = config.hash_bits;
    out["seed"] = seed_of(config);
    return out;
}

// Leaves out the seed, which is a secret.
std::string text_of(const BlockManagerConfig& config) {
    std::string windows;
    for (const WindowConfig& window : config.windows) {
        windows += (windows.empty() ? "" : ", ") + Repr("Window")
                                                       .add("size", window.window_size)
                                                       .add("blocks_primary", window.blocks_primary)
                                                       .add("blocks_host", window.blocks_host)
                                                       .text();
    }
    return Repr("BlockManagerConfig")
        .add("tokens_per_block", config.tokens_per_block)
        .add("windows", "[" + windows + "]")
        .add("max_beam_width", config.beam_width_max)
        .add("block_reuse", config.block_reuse)
        .add("partial_reuse", config.partial_reuse)
        .add("copy_on_partial_reuse", config.copy_on_partial_reuse)
        .add("offload_priority_min", config.offload_priority_min)
        .add("host_admission", std::string(name_of(config.host_admission)))
        .add("events_max", config.events_max)
        .text();
}

void init_config(BlockManagerConfig* self, Named<std::uint32_t, "tokens_per_block"> tokens_per_block,
                 nb::handle blocks_primary, nb::handle blocks_host, nb::handle sizes,
                 Named<std::uint32_t, "max_beam_width"> max_beam_width, bool block_reuse, bool partial_reuse,
                 bool copy_on_partial_reuse, Named<Priority, "offload_priority_min"> offload_priority_min,
                 const std::string& host_admission, Named<std::uint32_t, "events_max"> events_max,
                 Named<std::uint32_t, "hash_bits"> hash_bits, nb::handle seed) {
    BlockManagerConfig config{
        .tokens_per_block = tokens_per_block,
        .windows = make_windows(
            sizes.is_none() ? std::nullopt : std::optional(read_integers<std::uint32_t>(sizes, {"window_sizes"})),
            read_counts(blocks_primary, "blocks_primary"), read_counts(blocks_host, "blocks_host")),
        .beam_width_max = max_beam_width,
        .block_reuse = block_reuse,
        .partial_reuse = partial_reuse,
        .copy_on_partial_reuse = copy_on_partial_reuse,
        .offload_priority_min = offload_priority_min,
        .host_admission = host_admission_from(host_admission),
        .events_max = events_max,
        .hash_bits = hash_bits,
        .seed = seed_from(seed)};
    check_config(config);
    new (self) BlockManagerConfig(std::move(config));
}

}  // namespace

void bind_config(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<BlockManagerConfig>(m, "BlockManagerConfig",
                                   "The settings of a block manager. They are checked at once.")
        .def(
            "__init__", &init_config, nb::kw_only(), "tokens_per_block"_a, "blocks_primary"_a.none(),
            "blocks_host"_a.none() = 0, "window_sizes"_a = nb::none(), "max_beam_width"_a = 1, "block_reuse"_a = true,
            "partial_reuse"_a = true, "copy_on_partial_reuse"_a = true, "offload_priority_min"_a = 30,
            "host_admission"_a = "all", "events_max"_a = 0, "hash_bits"_a = kBlockHashBits, "seed"_a = nb::none(),
            nb::sig("def __init__(self, *, tokens_per_block: int, blocks_primary: int | Mapping[int, int], "
                    "blocks_host: int | Mapping[int, int] = 0, window_sizes: Sequence[int] | None = None, "
                    "max_beam_width: int = 1, "
                    "block_reuse: bool = True, partial_reuse: bool = True, copy_on_partial_reuse: bool = True, "
                    "offload_priority_min: int = 30, host_admission: str = \"all\", events_max: int = 0, hash_bits: "
                    "int = 128, "
                    "seed: int | None = None) -> None"),
            "hash_bits below 128 forces hash collisions, for tests. seed (128 bits) is the key of the block hashes and "
            "of the manager's indexes. It is a secret, the same on ranks that must agree. None: drawn from the "
            "system's entropy.")
        .def_ro("tokens_per_block", &BlockManagerConfig::tokens_per_block, "Tokens that a full block holds.")
        .def_prop_ro(
            "blocks_primary", [](const BlockManagerConfig& c) { return counts(c, &WindowConfig::blocks_primary); },
            "Slots on the GPU: one number, or one for each window.")
        .def_prop_ro(
            "blocks_host", [](const BlockManagerConfig& c) { return counts(c, &WindowConfig::blocks_host); },
            "Slots of the host tier: one number, or one for each window. 0: no host tier.")
        .def_prop_ro(
            "window_sizes", &window_sizes,
            "Sizes of attention windows in tokens, each with slots and a tree of its own. None: full attention.")
        .def_ro("max_beam_width", &BlockManagerConfig::beam_width_max, "The widest beam that a request may ask for.")
        .def_ro("block_reuse", &BlockManagerConfig::block_reuse, "False: nothing is ever matched or stored.")
        .def_ro("partial_reuse", &BlockManagerConfig::partial_reuse, "A block that matches in part is reused in part.")
        .def_ro("copy_on_partial_reuse", &BlockManagerConfig::copy_on_partial_reuse,
                "A partial match that is in use is copied. False: a partial match is only ever taken over, so it "
                "serves one request.")
        .def_ro("offload_priority_min", &BlockManagerConfig::offload_priority_min,
                "Evicted blocks of a lower retention priority are dropped, not copied to host.")
        .def_prop_ro(
            "host_admission", [](const BlockManagerConfig& c) { return std::string(name_of(c.host_admission)); },
            "Which evicted blocks may push others out of a full host tier. 'all', or 'adaptive': those for which no "
            "second request has asked may take only a share of it, which follows what comes back.")
        .def_ro("events_max", &BlockManagerConfig::events_max,
                "How many events may wait to be read; further ones push the oldest out. 0: no events.")
        .def_ro("hash_bits", &BlockManagerConfig::hash_bits,
                "How many bits of a block hash count. Fewer than 128 force collisions, for tests.")
        .def_prop_ro("seed", &seed_of,
                     "The key of the block hashes. It is a secret, the same on ranks that must agree.")
        .def(
            "__reduce__",
            [](nb::handle self) { return reduced(self, keywords_of(nb::cast<const BlockManagerConfig&>(self))); },
            nb::sig("def __reduce__(self) -> tuple[Any, ...]"))
        .def("__repr__", &text_of);
}

}  // namespace kvfix::bindings
