#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "bindings/wide_integers.h"
#include "core/config.h"
#include "core/request.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using RangeTuple = std::tuple<std::uint32_t, std::optional<std::uint32_t>, Priority, std::optional<std::uint32_t>>;

RetentionRange read_range(nb::handle range) {
    std::tuple<nb::object, nb::object, nb::object, nb::object> parts;
    if (!nb::try_cast(range, parts)) {
        throw nb::type_error(("retention ranges: expected (token_start, token_end or None, priority, duration_ms or "
                              "None), got " +
                              shown(range))
                                 .c_str());
    }
    const auto& [begin, end, priority, duration_ms] = parts;
    return {.token_begin = read_integer<std::uint32_t>(begin, {"retention token_start"}),
            .token_end = read_optional_integer<std::uint32_t>(end, {"retention token_end"}),
            .priority = read_integer<Priority>(priority, {"retention priority"}),
            .duration_ms = read_optional_integer<std::uint32_t>(duration_ms, {"retention duration_ms"})};
}

void init_retention(Retention* self, nb::handle ranges, nb::handle decode_priority, nb::handle decode_duration_ms) {
    Retention retention{.ranges = {},
                        .decode_priority = read_integer<Priority>(decode_priority, {"retention decode_priority"}),
                        .decode_duration_ms =
                            read_optional_integer<std::uint32_t>(decode_duration_ms, {"retention decode_duration_ms"})};
    if (!nb::isinstance<nb::iterable>(ranges)) {
        throw nb::type_error(("retention ranges: expected a list of tuples, got " + shown(ranges)).c_str());
    }
    for (const nb::handle range : ranges) {
        retention.ranges.push_back(read_range(range));
    }
    check_retention(retention);
    new (self) Retention(std::move(retention));
}

std::vector<RangeTuple> range_tuples(const Retention& retention) {
    std::vector<RangeTuple> out;
    for (const RetentionRange& range : retention.ranges) {
        out.emplace_back(range.token_begin, range.token_end, range.priority, range.duration_ms);
    }
    return out;
}

std::string read_text(nb::handle text, const Field& field) {
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (utf8 == nullptr) {
        PyErr_Clear();
        throw nb::value_error((field.text() + ": " + shown(text) +
                               " is not text: a surrogate stands alone (bytes that were decoded? give them as bytes)")
                                  .c_str());
    }
    return {utf8, static_cast<std::size_t>(size)};
}

void init_request(SequenceRequest* self, NamedRequest request_id, nb::handle tokens, nb::handle beam_width,
                  NamedLora lora_id, nb::handle salt, nb::handle extra_keys, const Retention* retention) {
    const auto width = read_integer<std::uint32_t>(beam_width, {"beam_width", request_id});
    auto request = read_request(request_id, tokens, width, lora_id, salt, extra_keys, retention);
    new (self) SequenceRequest{std::move(request)};
}

nb::dict keywords_of(const Retention& retention) {
    nb::dict out;
    out["ranges"] = range_tuples(retention);
    out["decode_priority"] = retention.decode_priority;
    out["decode_duration_ms"] = retention.decode_duration_ms;
    return out;
}

std::vector<nb::tuple> key_tuples(const Request& request) {
    std::vector<nb::tuple> out;
    for (const ExtraKey& key : request.extra_keys) {
        out.push_back(nb::make_tuple(key.begin, key.end, nb::bytes(key.digest.data(), key.digest.size())));
    }
    return out;
}

nb::dict keywords_of(const Request& request) {
    const nb::bytes raw(request.tokens.data(), request.tokens.size() * sizeof(TokenId));
    nb::dict out;
    out["request_id"] = request.id;
    out["tokens"] = nb::module_::import_("array").attr("array")("i", raw);
    out["beam_width"] = request.beam_width;
    out["lora_id"] = request.lora_id;
    out["salt"] = salt_object(request.salt);
    out["extra_keys"] = key_tuples(request);
    out["retention"] = request.retention;
    return out;
}

// A salt may be a tenant's secret, so it is not shown.
std::string text_of(const Request& request) {
    const bool salted = !std::holds_alternative<std::monostate>(request.salt);
    Repr text("SequenceRequest");
    text.add("request_id", request.id).add("tokens", "<" + std::to_string(request.num_tokens()) + ">");
    text.add("beam_width", request.beam_width).add("lora_id", request.lora_id);
    text.add("salt", std::string(salted ? "<given>" : "None"));
    return text.add("extra_keys", "<" + std::to_string(request.extra_keys.size()) + ">").text();
}

}  // namespace

nb::tuple reduced(nb::handle object, const nb::dict& keywords) {
    const nb::object make = nb::module_::import_("functools").attr("partial")(object.type(), **keywords);
    return nb::make_tuple(make, nb::tuple());
}

RequestPtr read_request(RequestId id, nb::handle tokens, std::uint32_t beam_width, std::optional<std::int64_t> lora_id,
                        nb::handle salt, nb::handle extra_keys, const Retention* retention) {
    return std::make_shared<const Request>(id, read_integers<TokenId>(tokens, {"tokens", id}), beam_width, lora_id,
                                           read_salt(salt, {"salt", id}),
                                           read_extra_keys(extra_keys, {"extra_keys", id}),
                                           retention != nullptr ? std::optional(*retention) : std::nullopt);
}

Salt read_salt(nb::handle salt, const Field& field) {
    if (salt.is_none()) {
        return std::monostate{};
    }
    if (nb::isinstance<nb::str>(salt)) {
        return read_text(salt, field);
    }
    if (nb::isinstance<nb::bytes>(salt)) {
        const auto raw = nb::cast<nb::bytes>(salt);
        const auto* begin = reinterpret_cast<const std::uint8_t*>(raw.c_str());
        return std::vector<std::uint8_t>(begin, begin + raw.size());
    }
    std::int64_t number = 0;
    if (PyBool_Check(salt.ptr()) || !nb::try_cast(salt, number)) {
        throw nb::type_error((field.text() + ": expected str, bytes or an int of 64 bits, got " + shown(salt)).c_str());
    }
    return number;
}

std::vector<ExtraKey> read_extra_keys(nb::handle keys, const Field& field) {
    std::vector<ExtraKey> out;
    for (const nb::handle key : keys) {
        std::tuple<nb::object, nb::object, nb::bytes> parts;
        if (!nb::try_cast(key, parts)) {
            throw nb::type_error(
                (field.text() + ": expected (token_start, token_end, digest bytes), got " + shown(key)).c_str());
        }
        const auto& [begin, end, digest] = parts;
        out.push_back({read_integer<std::uint32_t>(begin, field), read_integer<std::uint32_t>(end, field),
                       std::string(digest.c_str(), digest.size())});
    }
    return out;
}

namespace {

void bind_retention(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Retention>(m, "Retention",
                          "How long the blocks of a request are worth keeping: priorities 0 to 100, default 35.")
        .def("__init__", &init_retention, "ranges"_a.none() = nb::tuple(),
             "decode_priority"_a.none() = kPriorityDefault, "decode_duration_ms"_a = nb::none(),
             nb::sig("def __init__(self, ranges: Sequence[tuple[int, int | None, int, int | None]] = (), "
                     "decode_priority: int = 35, "
                     "decode_duration_ms: int | None = None) -> None"),
             "ranges: (token_start, token_end or None, priority, duration_ms or None), ascending and disjoint.")
        .def_prop_ro("ranges", &range_tuples,
                     "(token_start, token_end or None, priority, duration_ms or None), ascending and disjoint.")
        .def_ro("decode_priority", &Retention::decode_priority, "Priority of the blocks that growth takes.")
        .def_ro("decode_duration_ms", &Retention::decode_duration_ms,
                "How long decode_priority lasts once nobody uses the block. None: for ever.")
        .def(
            "__reduce__", [](nb::handle self) { return reduced(self, keywords_of(nb::cast<const Retention&>(self))); },
            nb::sig("def __reduce__(self) -> tuple[Any, ...]"))
        .def("__repr__", [](const Retention& r) {
            return Repr("Retention")
                .add("ranges", "[" + std::to_string(r.ranges.size()) + "]")
                .add("decode_priority", r.decode_priority)
                .add("decode_duration_ms", r.decode_duration_ms)
                .text();
        });
}

void bind_sequence_request(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<SequenceRequest>(m, "SequenceRequest",
                                "A request for blocks. It copies the tokens at construction and is immutable.")
        .def("__init__", &init_request, "request_id"_a, nb::arg("tokens").none(), nb::kw_only(),
             "beam_width"_a.none() = 1, "lora_id"_a = nb::none(), "salt"_a = nb::none(), "extra_keys"_a = nb::tuple(),
             "retention"_a = nb::none(),
             nb::sig(
                 "def __init__(self, request_id: int, tokens: Any, *, beam_width: int = 1, lora_id: int | None = None, "
                 "salt: str | bytes | int | None = None, extra_keys: Iterable[tuple[int, int, bytes]] = (), "
                 "retention: Retention | None = None) -> None"),
             "tokens: a 1-D int32 or int64 array (numpy, buffer, DLPack on the CPU) or a list of ints. Arrays are "
             "copied at the speed of "
             "memory, lists at a few nanoseconds a token. extra_keys: (token_start, token_end, digest) of multimodal "
             "spans, ascending.")
        .def_prop_ro(
            "request_id", [](const SequenceRequest& r) { return r.request->id; },
            "The id of the sequence in every later call.")
        .def_prop_ro(
            "num_tokens", [](const SequenceRequest& r) { return r.request->num_tokens(); }, "The length of the prompt.")
        .def_prop_ro(
            "tokens", [](const SequenceRequest& r) { return r.request->tokens; }, "The prompt, as a new list.")
        .def_prop_ro(
            "beam_width", [](const SequenceRequest& r) { return r.request->beam_width; },
            "Beams share the full blocks of the prompt; each has an incomplete last block of its own.")
        .def_prop_ro(
            "lora_id", [](const SequenceRequest& r) { return r.request->lora_id; },
            "Only requests with the same adapter share blocks.")
        .def_prop_ro(
            "salt", [](const SequenceRequest& r) { return salt_object(r.request->salt); },
            nb::sig("def salt(self) -> str | bytes | int | None"),
            "Only requests with the same salt share blocks. A number, a text and bytes are never the same salt.")
        .def_prop_ro(
            "extra_keys", [](const SequenceRequest& r) { return key_tuples(*r.request); },
            nb::sig("def extra_keys(self) -> list[tuple[int, int, bytes]]"),
            "Multimodal spans (token_start, token_end, digest), which are part of the identity of their blocks.")
        .def_prop_ro(
            "retention", [](const SequenceRequest& r) { return r.request->retention; },
            "How long its blocks are worth keeping. None: priority 35.")
        .def(
            "__reduce__",
            [](nb::handle self) { return reduced(self, keywords_of(*nb::cast<const SequenceRequest&>(self).request)); },
            nb::sig("def __reduce__(self) -> tuple[Any, ...]"))
        .def("__repr__", [](const SequenceRequest& r) { return text_of(*r.request); });
}

void bind_hashes(nb::module_& m) {
    using namespace nb::literals;
    m.def(
        "block_hashes",
        [](const SequenceRequest& request, const BlockManagerConfig& config) {
            return without_gil([&] {
                return block_hashes(*request.request, BlockHasher(config.seed, config.hash_bits),
                                    config.tokens_per_block);
            });
        },
        "request"_a, "config"_a,
        "The hashes of the prompt's full blocks in every manager with the config's tokens_per_block and seed.");
}

}  // namespace

void bind_request(nb::module_& m) {
    bind_retention(m);
    bind_sequence_request(m);
    bind_hashes(m);
}

}  // namespace kvfix::bindings
