// stress_request_books --seconds N --threads N --seed N
//
// Several loops make their requests in the same books at once: they note, settle, report, end, ask and reset, and take
// each other's copies. Any of them may settle what another has noted. Exit status 0 means that nothing was wrong. The
// program must fail if it is built with KVFIX_NO_LOCK.
#include <array>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/request_books.h"
#include "tests/stress_harness.h"

namespace kvfix::stress {
namespace {

constexpr std::uint32_t kTokensPerBlock = 4;
constexpr std::uint32_t kChunk = 8;
constexpr std::uint32_t kGrownMost = 24;

struct Kind {
    const char* name;
    std::optional<std::uint32_t> window;
    std::uint32_t blocks_host;
    bool in_chunks;
};

BlockManagerConfig config_of(const Kind& kind) {
    BlockManagerConfig config;
    config.tokens_per_block = kTokensPerBlock;
    config.windows = {{.window_size = kind.window, .blocks_primary = 64, .blocks_host = kind.blocks_host}};
    config.events_max = 64;
    return config;
}

std::optional<std::uint32_t> only_if(bool wanted, std::uint32_t value) {
    return wanted ? std::optional(value) : std::nullopt;
}

struct Arena {
    explicit Arena(const Kind& of)
        : kind(of),
          manager(config_of(kind)),
          books(manager, only_if(kind.in_chunks, kChunk), only_if(kind.in_chunks, 2 * kChunk)) {}

    void end_copies() { manager.complete(manager.take_transfers().ticket); }

    const Kind& kind;
    BlockManager manager;
    RequestBooks books;
    Progress progress;
};

// A request as its loop knows it.
struct Made {
    PromptPtr prompt;
    std::uint32_t position = 0;      // of the prompt
    std::uint32_t tokens_grown = 0;  // noted; some notes may have been dropped for lack of blocks
    bool is_dummy = false;

    RequestId id() const { return prompt->request->id; }
    std::uint32_t prompt_tokens() const { return prompt->request->num_tokens(); }
};

class Loop {
  public:
    Loop(Arena& arena, std::uint64_t seed, std::uint64_t number)
        : manager_(arena.manager),
          books_(arena.books),
          arena_(arena),
          random_(seed * 1000 + number),
          next_id_((number + 1) << 32) {}

    void run() {
        static constexpr std::array<void (Loop::*)(), 16> kCalls{
            &Loop::add,     &Loop::add,     &Loop::take_news, &Loop::settle, &Loop::settle, &Loop::settle,
            &Loop::compute, &Loop::compute, &Loop::grow,      &Loop::grow,   &Loop::grow,   &Loop::end,
            &Loop::ask,     &Loop::read,    &Loop::rewind,    &Loop::upset};
        while (!arena_.progress.is_over()) {
            (this->*kCalls[below(kCalls.size())])();
            arena_.progress.count_call();
        }
    }

    // Those that the books hold, by the loop's own notes.
    std::set<RequestId> live() {
        forget_dropped();
        std::set<RequestId> out;
        for (const Made& each : made_) {
            out.insert(each.id());
        }
        return out;
    }
    void end_all() {
        while (!made_.empty()) {
            end();
        }
    }

  private:
    std::size_t below(std::size_t bound) { return random_() % bound; }

    PromptPtr make_prompt() {
        std::vector<TokenId> tokens = tokens_of_a_family([this](std::size_t bound) { return below(bound); });
        return std::make_shared<Prompt>(std::make_shared<const Request>(next_id_++, std::move(tokens), 1, std::nullopt,
                                                                        Salt(), std::vector<ExtraKey>(), std::nullopt),
                                        below(8) == 0);
    }

    // A batch that does not fit is dropped by whoever settles, with the requests of others in it.
    void forget_dropped() {
        std::erase_if(made_, [this](const Made& each) { return !books_.knows(each.id()); });
    }
    Made* some() {
        forget_dropped();
        return made_.empty() ? nullptr : &made_[below(made_.size())];
    }
    Made* some_held() {
        Made* const one = some();
        return one != nullptr && books_.holds(one->id()) ? one : nullptr;
    }

    void add() {
        if (made_.size() < 6) {
            made_.push_back({.prompt = make_prompt(), .is_dummy = below(12) == 0});
            books_.add(made_.back().prompt, kGrownMost, made_.back().is_dummy);
        }
    }
    void settle() {
        try {
            if (!books_.settle_shortly() && books_.settle() == RequestBooks::Settled::must_drain) {
                arena_.end_copies();
                books_.settle(true);
            }
        } catch (const OutOfBlocks&) {
            end();
        }
        if (books_.may_have_copies()) {
            arena_.end_copies();
        }
    }
    // The next chunk of a prompt, as far as its positions are reserved.
    void compute() {
        if (Made* one = some_held()) {
            const std::uint32_t reserved = std::min(manager_.get_token_count(one->id()), one->prompt_tokens());
            one->position = std::max(one->position, std::min(one->position + kChunk, reserved));
            const bool more = books_.look(one->id(), one->position);
            expect(more || one->position == one->prompt_tokens(), "a prompt ends before its last chunk");
            books_.report(one->id(), one->position);
            books_.store(one->id(), one->prompt_tokens());
        }
    }
    void grow() {
        Made* const one = some_held();
        if (one == nullptr || one->tokens_grown == kGrownMost || one->position != one->prompt_tokens()) {
            return;
        }
        ++one->tokens_grown;
        try {
            if (!books_.note_token(one->id())) {
                books_.add_token(one->id());
            }
        } catch (const OutOfBlocks&) {
            end();  // a dummy's token is settled at once
        }
    }
    void end() {
        if (made_.empty()) {
            return;
        }
        std::swap(made_[below(made_.size())], made_.back());
        const Made one = made_.back();
        made_.pop_back();
        const std::uint32_t tokens = one.prompt_tokens() + one.tokens_grown;
        const std::uint32_t needed = books_.remove(one.id(), only_if(below(4) != 0, tokens));
        if (needed != 0) {
            std::vector<TokenId> known = one.prompt->request->tokens;
            while (known.size() < needed) {
                known.push_back(known.back() + 1);
            }
            books_.remove(one.id(), known);
        }
        expect(!books_.knows(one.id()), "something is noted of a request that has ended");
    }
    void rewind() {
        if (arena_.kind.window) {
            return;  // what would be needed again may have left it
        }
        const Made* const one = some_held();
        if (one != nullptr && manager_.get_token_count(one->id()) > one->prompt_tokens()) {
            books_.rewind(one->id(), 1);
        }
    }

    // What a scheduler asks.
    void ask() {
        forget_dropped();
        std::vector<RequestId> held;
        for (const Made& each : made_) {
            if (books_.holds(each.id())) {
                held.push_back(each.id());
            }
        }
        RequestBooks::Starting starting = books_.start({64});
        for (const std::uint64_t blocks : books_.blocks_to_complete(held)) {
            starting.free.front() -= static_cast<std::int64_t>(blocks);
        }
        for (const Made& each : made_) {
            if (books_.ask(starting, *each.prompt, kGrownMost) == RequestBooks::StartAnswer::fits) {
                starting.charge();
            }
        }
    }
    // Whoever takes the news may find the requests of others among them. Its own have not ended.
    void take_news() {
        for (const RequestBooks::Admitted& each : books_.take_admitted()) {
            expect(each.tokens_reused < each.tokens, "a request without a token to compute");
            const bool is_own = each.id >> 32 == next_id_ >> 32;
            const auto is_it = [&](const Made& made) { return made.id() == each.id; };
            expect(!is_own || std::ranges::any_of(made_, is_it), "an admission is noted of a request that has ended");
        }
        books_.take_who_got_blocks();
        manager_.get_latest_events();
    }
    void read() {
        for (int i = 0; i < 64; ++i) {  // between two calls that take the lock a race is seldom seen
            books_.changes();
        }
        books_.is_idle();
        books_.live();
        for (const WindowStats& window : manager_.get_kv_cache_stats().windows) {
            for (const TierStats& tier : {window.primary, window.host}) {
                expect(tier.free + tier.cached + tier.owned + tier.in_flight == tier.blocks,
                       "slots are lost or counted twice");
            }
        }
        if (const Made* one = some_held()) {
            expect(books_.filled(one->id(), one->prompt_tokens()) <= one->prompt_tokens(),
                   "more is filled than there is");
            books_.is_private(one->id());
        }
    }
    void upset() {
        switch (below(16)) {
            case 0:
                books_.keep_all_private();
                break;
            case 1:
                manager_.reset_reuse_state();
                break;
            case 2:
                manager_.check_invariants();
                manager_.digest();
                break;
            default:
                break;
        }
    }

    BlockManager& manager_;
    RequestBooks& books_;
    Arena& arena_;
    std::mt19937_64 random_;
    RequestId next_id_;
    std::vector<Made> made_;
};

// Every block is free, cached or held, and no two of these: what the live requests list is what is counted as held.
void expect_books_balance(Arena& arena) {
    arena.end_copies();
    arena.manager.check_invariants();
    std::set<std::int64_t> held;
    for (const RequestId id : arena.books.live()) {
        const auto beams = arena.manager.get_batch_cache_block_ids({&id, 1}, arena.kind.window).front();
        held.insert(beams.front().begin(), beams.front().end());
    }
    held.erase(-1);  // has left the window
    const WindowStats window = arena.manager.get_kv_cache_stats().windows.front();
    expect(window.primary.owned == held.size(), "other blocks are held than the live requests list");
    expect(window.primary.free + window.primary.cached + held.size() == window.primary.blocks,
           "a block is neither free nor cached nor held");
}

void expect_nothing_left(Arena& arena) {
    expect(arena.books.live().empty() && arena.books.is_idle(), "a request is left in the books");
    expect(arena.books.take_admitted().empty(), "an admission is noted of a request that has ended");
    const std::uint64_t changes = arena.books.changes();
    expect(arena.books.settle() == RequestBooks::Settled::quiet && arena.books.changes() == changes,
           "something is noted although every request has ended");
    expect_books_balance(arena);
    arena.manager.reset_reuse_state();
    const WindowStats window = arena.manager.get_kv_cache_stats().windows.front();
    expect(window.primary.free == window.primary.blocks && window.host.free == window.host.blocks,
           "a slot is lost for good");
}

void play(const Kind& kind, const Options& options, std::chrono::milliseconds time) {
    Arena arena(kind);
    arena.books.note_who_gets_blocks();
    std::vector<std::unique_ptr<Loop>> loops;
    for (std::uint64_t number = 0; number < options.threads; ++number) {
        loops.push_back(std::make_unique<Loop>(arena, options.seed, number));
    }
    Threads(arena.progress, time).run(options.threads, [&](std::uint64_t number) { loops[number]->run(); });
    try {
        arena.end_copies();
        arena.books.settle(true);
    } catch (const OutOfBlocks&) {
        // what did not fit is forgotten
    }
    std::set<RequestId> live;
    for (const auto& loop : loops) {
        live.merge(loop->live());
    }
    const std::vector<RequestId> in_books = arena.books.live();
    expect(std::ranges::equal(live, in_books), "the books hold other requests than the loops");
    expect_books_balance(arena);
    for (const auto& loop : loops) {
        loop->end_all();
    }
    expect_nothing_left(arena);
    const CacheCounters total = arena.manager.get_kv_cache_stats().total;
    std::printf(
        "stress_request_books, %s: %s calls of %s threads, seed %s: nothing wrong (%s requests, %s blocks reused)\n",
        kind.name, std::to_string(arena.progress.calls()).c_str(), std::to_string(options.threads).c_str(),
        std::to_string(options.seed).c_str(), std::to_string(total.requests).c_str(),
        std::to_string(total.blocks_reused).c_str());
}

}  // namespace
}  // namespace kvfix::stress

int main(int argc, char** argv) {
    using kvfix::stress::Kind;
    const kvfix::stress::Options options = kvfix::stress::parse(argc, argv);
    const std::array<Kind, 3> kinds{{{"one tier", std::nullopt, 0, false},
                                     {"a host tier", std::nullopt, 24, false},
                                     {"a window in chunks", 12, 0, true}}};
    for (const Kind& kind : kinds) {
        kvfix::stress::play(kind, options, std::chrono::milliseconds(options.seconds * 1000 / kinds.size()));
    }
    return 0;
}
