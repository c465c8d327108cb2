// The notes between the calls of a server's loop and the block manager.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/manager_class.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "core/request_books.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Books = RequestBooks;
using Position = Named<std::uint32_t, "position">;
using Count = Named<std::uint32_t, "count">;
using Tokens = Named<std::uint32_t, "tokens">;
using TokensNewMax = Named<std::uint32_t, "tokens_new_max">;
using OptionalTokens = Named<std::optional<std::uint32_t>, "tokens">;
using ChunkTokens = Named<std::optional<std::uint32_t>, "chunk_tokens">;
using TokensAhead = Named<std::optional<std::uint32_t>, "tokens_ahead">;

// The Python object owns a share: live requests drop theirs without the GIL.
struct SharedPrompt {
    PromptPtr prompt;
};

void add_token(Books& self, NamedRequest request_id, bool) {
    if (!self.note_token(request_id)) {
        without_gil([&] { self.add_token(request_id); });
    }
}

Books::Settled settle(Books& self, bool drained) {
    if (const auto settled = self.settle_shortly()) {
        return *settled;
    }
    return without_gil([&] { return self.settle(drained); });
}

void end(Books& self, NamedRequest request_id, nb::handle tokens) {
    const auto values = read_integers<TokenId>(tokens, {"end, tokens"});
    without_gil([&] { self.remove(request_id, values); });
}

void bind_prompt(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<SharedPrompt>(m, "Prompt", "What a request says of its blocks, as RequestBooks takes it.")
        .def(
            "__init__",
            [](SharedPrompt* self, NamedRequest request_id, nb::handle tokens, NamedLora lora_id, nb::handle salt,
               nb::handle extra_keys, const Retention* retention, bool is_private) {
                auto request = read_request(request_id, tokens, 1, lora_id, salt, extra_keys, retention);
                new (self) SharedPrompt{std::make_shared<Prompt>(std::move(request), is_private)};
            },
            "request_id"_a, nb::arg("tokens").none(), nb::kw_only(), "lora_id"_a = nb::none(), "salt"_a = nb::none(),
            "extra_keys"_a = nb::tuple(), "retention"_a = nb::none(), "is_private"_a = false,
            nb::sig("def __init__(self, request_id: int, tokens: Any, *, lora_id: int | None = None, "
                    "salt: str | bytes | int | None = None, extra_keys: Iterable[tuple[int, int, bytes]] = (), "
                    "retention: Retention | None = None, is_private: bool = False) -> None"),
            "The arguments of SequenceRequest. "
            "is_private: no other request may find its blocks, because they depend on more than their names say.")
        .def_prop_ro(
            "request_id", [](const SharedPrompt& self) { return self.prompt->request->id; }, "The request's id.")
        .def_prop_ro(
            "num_tokens", [](const SharedPrompt& self) { return self.prompt->request->num_tokens(); }, "Its length.")
        .def_prop_ro(
            "is_private", [](const SharedPrompt& self) { return self.prompt->is_private; },
            "Whether no other request may find its blocks.")
        .def_prop_ro(
            "sequence", [](const SharedPrompt& self) { return SequenceRequest{self.prompt->request}; },
            "The prompt as the block manager takes it.")
        .def("__repr__", [](const SharedPrompt& self) {
            return Repr("Prompt")
                .add("request_id", self.prompt->request->id)
                .add("num_tokens", self.prompt->request->num_tokens())
                .add("is_private", self.prompt->is_private)
                .text();
        });
}

void bind_answers(nb::module_& m) {
    using namespace nb::literals;
    nb::enum_<Books::Settled>(m, "Settled", nb::is_arithmetic(), "How RequestBooks.settle() ended.")
        .value("QUIET", Books::Settled::quiet, "Nothing is left to do.")
        .value("NEWS", Books::Settled::news, "There are admitted requests or copies to take.")
        .value("MUST_DRAIN", Books::Settled::must_drain,
               "Growth waits for slots that copies hold: end all copies, then settle(drained=True).");
    nb::enum_<Books::StartAnswer>(m, "StartAnswer", nb::is_arithmetic(), "Whether a request may start.")
        .value("FITS", Books::StartAnswer::fits, "It may.")
        .value("GAINS_BY_WAITING", Books::StartAnswer::gains_by_waiting,
               "Another request computes the block that it needs first.")
        .value("LACKS_ROOM", Books::StartAnswer::lacks_room, "Its blocks are not there.");
    nb::class_<Books::Admitted>(m, "Admitted", "A request that settle() has admitted.")
        .def_ro("request_id", &Books::Admitted::id, "The request's id.")
        .def_ro("tokens_reused", &Books::Admitted::tokens_reused, "Leading tokens that it found in the cache.")
        .def_ro("tokens", &Books::Admitted::tokens, "The length of its prompt.")
        .def_ro("is_dummy", &Books::Admitted::is_dummy, "Whether it stands for a request.")
        .def_ro("has_duration", &Books::Admitted::has_duration, "Whether its retention ends at some time.")
        .def("__repr__", [](const Books::Admitted& a) {
            return Repr("Admitted").add("request_id", a.id).add("tokens_reused", a.tokens_reused).text();
        });
    nb::class_<Books::GotBlocks>(m, "GotBlocks", "A request that has got further blocks.")
        .def_ro("request_id", &Books::GotBlocks::id, "The request's id.")
        .def_ro("tokens_reused", &Books::GotBlocks::tokens_reused,
                "Leading tokens that it found in the cache when it was admitted; None when it grew.")
        .def_ro("is_dummy", &Books::GotBlocks::is_dummy, "Whether it stands for a request.")
        .def("__repr__", [](const Books::GotBlocks& g) { return Repr("GotBlocks").add("request_id", g.id).text(); });
    nb::class_<Books::Starting>(m, "Starting", "One pass of a capacity scheduler over the requests that wait.")
        .def_ro("free", &Books::Starting::free, "Blocks, by window, that are left for the requests asked about next.")
        .def_ro("tokens_found", &Books::Starting::tokens_found,
                "Tokens in whole cached blocks of the request asked about last.")
        .def(
            "fits",
            [](Books::Starting& self, nb::handle blocks) {
                return self.fits(read_integers<std::uint64_t>(blocks, {"fits, blocks"}));
            },
            "blocks"_a.none(), nb::sig("def fits(self, blocks: Any) -> bool"),
            "Whether so many are left for the request asked about last, instead of those that were found for it.")
        .def("charge", &Books::Starting::charge, "The request asked about last starts.")
        .def("__repr__",
             [](const Books::Starting& s) { return Repr("Starting").add("windows", s.free.size()).text(); });
}

using BooksClass = nb::class_<Books>;

void bind_notes(BooksClass& c) {
    using namespace nb::literals;
    c.def(
         "add",
         [](Books& self, const SharedPrompt& prompt, TokensNewMax tokens_new_max, bool is_dummy) {
             without_gil([&] { self.add(prompt.prompt, tokens_new_max, is_dummy); });
         },
         "prompt"_a, "tokens_new_max"_a, "is_dummy"_a = false, "Notes a request, for the next settle().")
        .def("add_token", &add_token, "request_id"_a, "detach_swa_front_blocks"_a = true,
             "Notes one more position of a request. A dummy's is settled at once, because its refusal is expected from "
             "this call.")
        .def(
            "look",
            [](Books& self, NamedRequest request_id, Position position) {
                return without_gil([&] { return self.look(request_id, position); });
            },
            "request_id"_a, "position"_a,
            "The request's position may have moved. Returns whether more chunks of its prompt will come.")
        .def(
            "begin_at",
            [](Books& self, NamedRequest request_id, Position position) {
                without_gil([&] { self.begin_at(request_id, position); });
            },
            "request_id"_a, "position"_a, "The model begins there: behind what somebody loads.")
        .def("settle", &settle, "drained"_a = false,
             "Admits the noted requests in one batch, then grows the others. drained: all copies have ended.")
        .def("take_admitted", &Books::take_admitted, nb::call_guard<GilReleased>(),
             "The requests that were admitted since the last call.")
        .def("note_who_gets_blocks", &Books::note_who_gets_blocks, nb::call_guard<GilReleased>(),
             "From now on, for take_who_got_blocks().")
        .def("take_who_got_blocks", &Books::take_who_got_blocks, nb::call_guard<GilReleased>(),
             "The requests that were admitted, or grew by a block, since the last call.")
        .def("may_have_copies", &Books::may_have_copies,
             "Whether copies are queued; also true while another thread works on the manager.");
}

void bind_ends(BooksClass& c) {
    using namespace nb::literals;
    c.def(
         "report",
         [](Books& self, NamedRequest request_id, Position position) {
             without_gil([&] { self.report(request_id, position); });
         },
         "request_id"_a, "position"_a,
         "A batch with a chunk of its prompt has ended. position: where the request stands. It may be unknown by now.")
        .def(
            "filled",
            [](const Books& self, NamedRequest request_id, Tokens tokens) {
                return without_gil([&] { return self.filled(request_id, tokens); });
            },
            "request_id"_a, "tokens"_a,
            "Leading positions whose values are in the cache, as far as is known. tokens: those that the request has "
            "by "
            "now.")
        .def(
            "store",
            [](Books& self, NamedRequest request_id, Tokens tokens) {
                without_gil([&] { self.store(request_id, tokens); });
            },
            "request_id"_a, "tokens"_a,
            "Stores what is computed of the prompt, without a report. tokens: those that the request has by now.")
        .def(
            "rewind",
            [](Books& self, NamedRequest request_id, Count count) {
                without_gil([&] { self.rewind(request_id, count); });
            },
            "request_id"_a, "count"_a, "Takes back the last count grown positions.")
        .def(
            "remove",
            [](Books& self, NamedRequest request_id, OptionalTokens tokens) {
                return without_gil([&] { return self.remove(request_id, tokens); });
            },
            "request_id"_a, "tokens"_a.none(),
            "Ends a request that has so many tokens by now; with None it keeps nothing for others. Returns how many of "
            "its first tokens end() needs instead; 0 if it has ended.")
        .def("end", &end, "request_id"_a, "tokens"_a, nb::sig("def end(self, request_id: int, tokens: Any) -> None"),
             "Ends a request, and keeps these tokens of it for others.")
        .def("keep_all_private", &Books::keep_all_private, nb::call_guard<GilReleased>(),
             "Nothing that live requests have computed, or will, is kept for others.");
}

void bind_states(BooksClass& c) {
    using namespace nb::literals;
    const auto of_one = [](auto method) {
        return [method](const Books& self, NamedRequest request_id) {
            return without_gil([&] { return (self.*method)(request_id); });
        };
    };
    const auto property = [](auto method) {
        return [method](const Books& self) { return without_gil([&] { return (self.*method)(); }); };
    };
    c.def("holds", of_one(&Books::holds), "request_id"_a, "Whether the request was admitted, and not removed.")
        .def("knows", of_one(&Books::knows), "request_id"_a, "The same, or it is noted.")
        .def("is_private", of_one(&Books::is_private), "request_id"_a, "Whether nothing of it is kept for others.")
        .def_prop_ro("is_idle", property(&Books::is_idle), "Whether only dummies are live.")
        .def_prop_ro("live", property(&Books::live),
                     "The ids of the requests that were admitted and not removed, ascending.")
        .def_prop_ro("changes", property(&Books::changes),
                     "While this number stays, all live requests keep the same blocks.")
        .def(
            "blocks_to_complete",
            [](const Books& self, nb::handle request_ids) {
                const auto ids = read_integers<RequestId>(request_ids, {"blocks_to_complete, request_ids"});
                return without_gil([&] { return self.blocks_to_complete(ids); });
            },
            "request_ids"_a, nb::sig("def blocks_to_complete(self, request_ids: Any) -> list[int]"),
            "Blocks, by window, that these requests take until their last tokens, besides those held or kept for them.")
        .def(
            "start",
            [](Books& self, nb::handle free) {
                auto blocks = read_integers<std::int64_t>(free, {"start, free"});
                return without_gil([&] { return self.start(std::move(blocks)); });
            },
            "free"_a.none(), nb::sig("def start(self, free: Any) -> Starting"),
            "Begins a scheduler's pass with so many blocks, by window.")
        .def(
            "ask",
            [](Books& self, Books::Starting& starting, const SharedPrompt& prompt, TokensNewMax tokens_new_max) {
                return without_gil([&] { return self.ask(starting, *prompt.prompt, tokens_new_max); });
            },
            "starting"_a, "prompt"_a, "tokens_new_max"_a,
            "Whether the request may start and then grow by so many tokens. Charges nothing.");
}

}  // namespace

void bind_request_books(nb::module_& m) {
    using namespace nb::literals;
    bind_prompt(m);
    bind_answers(m);
    BooksClass books(
        m, "RequestBooks",
        "Between the calls of a server's loop and the block manager: single calls become a batch, and wait "
        "for what the loop says late.");
    books
        .def(
            "__init__",
            [](Books* self, BlockManager& manager, ChunkTokens chunk_tokens, TokensAhead tokens_ahead) {
                new (self) Books(manager, chunk_tokens, tokens_ahead);
            },
            "manager"_a, nb::kw_only(), "chunk_tokens"_a.none() = nb::none(), "tokens_ahead"_a.none() = nb::none(),
            nb::keep_alive<1, 2>(),
            "chunk_tokens: of a prompt in one step, where prompts are reserved in chunks. tokens_ahead: positions that "
            "may be reserved then beyond those known to be computed.")
        .def("__repr__", [](const Books& self) {
            return Repr("RequestBooks").add("live", without_gil([&] { return self.live(); })).text();
        });
    bind_notes(books);
    bind_ends(books);
    bind_states(books);
}

}  // namespace kvfix::bindings
