#include "core/request_books.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/admit.h"
#include "core/ask.h"
#include "core/store.h"

namespace kvfix {
namespace {

bool has_duration(const Request& request) {
    const auto lasts = [](const RetentionRange& range) { return range.duration_ms.has_value(); };
    return request.retention &&
           (request.retention->decode_duration_ms || std::ranges::any_of(request.retention->ranges, lasts));
}

void refuse_zero(const char* name, std::optional<std::uint32_t> given) {
    if (given == 0) {
        throw std::invalid_argument(std::string(name) + " is 0: at least 1, or none where prompts are reserved whole");
    }
}

void check_windows(const char* name, std::size_t given, std::size_t windows) {
    if (given != windows) {
        throw std::invalid_argument(std::string(name) + " has " + std::to_string(given) + " numbers, and there are " +
                                    std::to_string(windows) + " windows");
    }
}

}  // namespace

RequestBooks::RequestBooks(BlockManager& manager, std::optional<std::uint32_t> chunk_tokens,
                           std::optional<std::uint32_t> tokens_ahead)
    : manager_(manager), chunk_tokens_(chunk_tokens), tokens_ahead_(tokens_ahead) {
    refuse_zero("chunk_tokens", chunk_tokens);
    refuse_zero("tokens_ahead", tokens_ahead);
}

// ------------------------------------------------------------------------------------------------ a live request

void RequestBooks::Live::look(std::uint32_t now) {
    if (!is_in_prompt()) {
        return;
    }
    // A failed load moves it backwards. One chunk more is counted then, so less counts as computed, never more.
    if (const std::uint32_t moved = std::min(now, prompt_tokens); moved != position) {
        chunk_ends.push_back(moved);
        position = moved;
    }
}

void RequestBooks::Live::report(std::uint32_t now) {
    look(now);
    if (!chunk_ends.empty()) {
        computed = chunk_ends.front();
        chunk_ends.pop_front();
    }
    if (computed == prompt_tokens) {
        prompt = nullptr;
    }
}

// Leading positions that the device has computed when the next one is reserved. The last one may be in the step that
// runs meanwhile.
std::uint32_t RequestBooks::Live::computed_for_growth(std::uint32_t length) const {
    return computed < prompt_tokens ? computed : std::max(computed, length - 1);
}

// ------------------------------------------------------------------------------------------------ notes

RequestBooks::Live* RequestBooks::find(RequestId id) {
    const auto found = live_.find(id);
    return found == live_.end() ? nullptr : &found->second;
}

const RequestBooks::Live& RequestBooks::at(RequestId id) const {
    const auto found = live_.find(id);
    if (found == live_.end()) {
        throw UnknownRequest(id);
    }
    return found->second;
}

void RequestBooks::add(PromptPtr prompt, std::uint32_t tokens_new_max, bool is_dummy) {
    const ManagerGuard guard(manager_.mutex_);
    const RequestId id = prompt->request->id;
    if (live_.contains(id)) {
        throw std::runtime_error("request " + std::to_string(id) +
                                 " was added and not removed; adding it again would lose its blocks");
    }
    arriving_.push_back({std::move(prompt), tokens_new_max, is_dummy});
}

void RequestBooks::add_token(RequestId id) {
    const ManagerGuard guard(manager_.mutex_);
    growing_.push_back(id);
    if (dummies_.contains(id)) {
        settle_locked(true);
    }
}

bool RequestBooks::note_token(RequestId id) {
    const std::unique_lock guard(manager_.mutex_, std::try_to_lock);
    if (!guard.owns_lock() || dummies_.contains(id)) {
        return false;
    }
    growing_.push_back(id);
    return true;
}

bool RequestBooks::look(RequestId id, std::uint32_t position) {
    const ManagerGuard guard(manager_.mutex_);
    Live* live = find(id);
    if (live == nullptr) {
        return true;
    }
    live->look(position);
    if (!live->is_in_prompt()) {
        return false;
    }
    if (chunk_tokens_) {
        // So that a step may compute the next chunk.
        const std::uint32_t wanted = std::min(live->position + *chunk_tokens_, live->prompt_tokens);
        if (const std::uint32_t length = state().sequences.at_any(id).length; wanted > length) {
            chunks_[id] = wanted - length;
        }
    }
    return true;
}

void RequestBooks::begin_at(RequestId id, std::uint32_t position) {
    const ManagerGuard guard(manager_.mutex_);
    if (Live* live = find(id)) {
        live->position = position;
    }
}

void RequestBooks::forget_notes(RequestId id) {
    std::erase_if(arriving_, [id](const Arrival& each) { return each.prompt->request->id == id; });
    std::erase(growing_, id);
    chunks_.erase(id);
}

// ------------------------------------------------------------------------------------------------ settling

RequestBooks::Settled RequestBooks::settle(bool drained) {
    const ManagerGuard guard(manager_.mutex_);
    return settle_locked(drained);
}

RequestBooks::Settled RequestBooks::settle_locked(bool drained) {
    admit_noted();
    return grow_noted(drained) ? news() : Settled::must_drain;
}

std::optional<RequestBooks::Settled> RequestBooks::settle_shortly() {
    const std::unique_lock guard(manager_.mutex_, std::try_to_lock);
    if (!guard.owns_lock() || !arriving_.empty()) {
        return std::nullopt;
    }
    if (growing_.empty() && chunks_.empty()) {
        return news();
    }
    collect();
    const grow::Growth growth = collected();
    if (!grow::are_few(state().config, growth)) {
        return std::nullopt;
    }
    try {
        const grow::Plan plan = grow::plan(state(), manager_.steps_, growth);
        if (!grow::is_short(state(), plan)) {
            return std::nullopt;
        }
        grow::carry_out(state(), plan);
    } catch (const std::exception&) {  // settle() meets it again, and decides
        return std::nullopt;
    }
    grew();
    return news();
}

RequestBooks::Settled RequestBooks::news() const {
    return admitted_.empty() && state().ledger.queued().empty() ? Settled::quiet : Settled::news;
}

void RequestBooks::admit_noted() {
    if (arriving_.empty()) {
        return;
    }
    const std::vector<Arrival> arriving = std::exchange(arriving_, {});
    std::vector<RequestPtr> requests;
    for (const Arrival& each : arriving) {
        requests.push_back(each.prompt->request);
    }
    BatchAdmission batch;
    try {
        batch = admit::batch(state(), manager_.planner_, requests, std::nullopt, ahead());
    } catch (...) {
        for (const RequestPtr& each : requests) {
            forget_notes(each->id);
        }
        throw;
    }
    ++changes_;
    for (std::size_t i = 0; i < arriving.size(); ++i) {
        const Arrival& each = arriving[i];
        const Request& request = *each.prompt->request;
        const auto reused = static_cast<std::uint32_t>(batch.admitted[i].tokens_reused);
        admitted_.push_back({request.id, reused, request.num_tokens(), each.is_dummy, has_duration(request)});
        live_.emplace(request.id, Live{.prompt = each.prompt,
                                       .prompt_tokens = request.num_tokens(),
                                       .tokens_max = request.num_tokens() + each.tokens_new_max,
                                       .computed = reused,
                                       .position = reused,
                                       .chunk_ends = {},
                                       .is_private = each.prompt->is_private,
                                       .is_dummy = each.is_dummy});
        if (each.is_dummy) {
            dummies_.insert(request.id);
        }
        if (notes_who_gets_blocks_) {
            got_blocks_.push_back({request.id, reused, each.is_dummy});
        }
    }
    for (const Arrival& each : arriving) {
        if (each.is_dummy) {
            fill(each.prompt->request->id, live_.at(each.prompt->request->id));
        }
    }
}

// Reserves the whole prompt of a dummy, as if it were computed meanwhile: it stands for one that has been.
void RequestBooks::fill(RequestId id, Live& dummy) {
    const Sequence& sequence = *std::as_const(state().sequences).find(id);
    while (sequence.length < dummy.prompt_tokens) {
        const std::uint32_t count = std::min(ahead(), dummy.prompt_tokens - sequence.length);
        const std::uint32_t computed = sequence.length;
        grow::carry_out(state(),
                        grow::plan(state(), manager_.steps_, {{&id, 1}, {&count, 1}, std::nullopt, {{&computed, 1}}}));
        dummy.computed = computed;
    }
}

// Adds up what is noted for each request.
void RequestBooks::collect() {
    ids_.clear();
    counts_.clear();
    computed_.clear();
    const auto take = [&](RequestId id, std::uint32_t count) {
        Live* live = find(id);
        if (live != nullptr && live->place < ids_.size() && ids_[live->place] == id) {
            counts_[live->place] += count;
            return;
        }
        if (live != nullptr) {
            live->place = static_cast<std::uint32_t>(ids_.size());
        }
        ids_.push_back(id);
        counts_.push_back(count);
        if (slides()) {
            computed_.push_back(
                live == nullptr ? 0 : live->computed_for_growth(std::as_const(state().sequences).at_any(id).length));
        }
    };
    for (const RequestId id : growing_) {
        take(id, 1);
    }
    for (const auto& [id, count] : chunks_) {
        take(id, count);
    }
}

grow::Growth RequestBooks::collected() const {
    grow::Growth growth{ids_, counts_, std::nullopt, std::nullopt};
    if (slides()) {
        growth.computed = computed_;
    }
    return growth;
}

void RequestBooks::grew() {
    const std::uint32_t unit = state().tokens_per_block();
    for (std::size_t i = 0; notes_who_gets_blocks_ && i < ids_.size(); ++i) {
        const std::uint32_t length = std::as_const(state().sequences).at_any(ids_[i]).length;
        if (ceil_div(length, unit) != ceil_div(length - counts_[i], unit)) {
            got_blocks_.push_back({ids_[i], std::nullopt, dummies_.contains(ids_[i])});
        }
    }
    end_growth();
}

void RequestBooks::end_growth() {
    growing_.clear();
    chunks_.clear();
    ++changes_;
}

bool RequestBooks::grow_noted(bool drained) {
    if (growing_.empty() && chunks_.empty()) {
        return true;
    }
    collect();
    try {
        grow::carry_out(state(), grow::plan(state(), manager_.steps_, collected()));
    } catch (const OutOfBlocks&) {
        if (!drained) {
            return false;
        }
        end_growth();
        throw;
    } catch (...) {
        end_growth();
        throw;
    }
    grew();
    return true;
}

std::vector<RequestBooks::Admitted> RequestBooks::take_admitted() {
    const ManagerGuard guard(manager_.mutex_);
    return std::exchange(admitted_, {});
}

void RequestBooks::note_who_gets_blocks() {
    const ManagerGuard guard(manager_.mutex_);
    notes_who_gets_blocks_ = true;
}

std::vector<RequestBooks::GotBlocks> RequestBooks::take_who_got_blocks() {
    const ManagerGuard guard(manager_.mutex_);
    return std::exchange(got_blocks_, {});
}

bool RequestBooks::may_have_copies() {
    const std::unique_lock guard(manager_.mutex_, std::try_to_lock);
    return !guard.owns_lock() || !state().ledger.queued().empty();
}

// ------------------------------------------------------------------------------------------------ storing and ending

void RequestBooks::report(RequestId id, std::uint32_t position) {
    const ManagerGuard guard(manager_.mutex_);
    Live* live = find(id);
    if (live == nullptr || live->is_private) {
        return;
    }
    live->report(position);
    store::context(state(), id, live->computed);
}

void RequestBooks::store(RequestId id, std::uint32_t tokens) {
    const ManagerGuard guard(manager_.mutex_);
    const Live& live = at(id);
    if (!live.is_private) {
        const bool sampled = tokens > live.prompt_tokens;  // by a step that had computed the prompt
        store::context(state(), id, sampled ? live.prompt_tokens : live.computed);
    }
}

void RequestBooks::rewind(RequestId id, std::uint32_t count) {
    const ManagerGuard guard(manager_.mutex_);
    grow::rewind(state(), id, count);
    ++changes_;
}

std::uint32_t RequestBooks::filled(RequestId id, std::uint32_t tokens) const {
    const ManagerGuard guard(manager_.mutex_);
    return filled(id, at(id), tokens);
}

std::uint32_t RequestBooks::filled(RequestId id, const Live& live, std::uint32_t tokens) const {
    if (tokens <= live.prompt_tokens) {
        return live.computed;
    }
    // A token was sampled from a step that had computed every position before it. The last one itself may not have gone
    // through the model.
    return std::min(tokens - 1, std::as_const(state().sequences).at_any(id).length);
}

std::uint32_t RequestBooks::remove(RequestId id, std::optional<std::uint32_t> tokens) {
    const ManagerGuard guard(manager_.mutex_);
    const Live* live = find(id);
    if (live == nullptr) {
        forget_notes(id);
        return 0;
    }
    if (!tokens || live->is_private || live->is_dummy) {
        store::remove(state(), id, false, false, std::nullopt, std::nullopt);
        end(id);
        return 0;
    }
    const std::uint32_t computed = filled(id, *live, *tokens);
    if (computed > live->prompt_tokens) {
        return computed;
    }
    store::remove(state(), id, true, false, std::nullopt, computed);
    end(id);
    return 0;
}

void RequestBooks::remove(RequestId id, std::span<const TokenId> tokens) {
    const ManagerGuard guard(manager_.mutex_);
    store::remove(state(), id, true, false, tokens, static_cast<std::uint32_t>(tokens.size()));
    end(id);
}

void RequestBooks::end(RequestId id) {
    forget_notes(id);
    live_.erase(id);
    dummies_.erase(id);
    std::erase_if(admitted_, [id](const Admitted& each) { return each.id == id; });
    ++changes_;
}

void RequestBooks::keep_all_private() {
    const ManagerGuard guard(manager_.mutex_);
    for (auto& [id, live] : live_) {
        live.is_private = true;
    }
}

// ------------------------------------------------------------------------------------------------ questions

bool RequestBooks::holds(RequestId id) const {
    const ManagerGuard guard(manager_.mutex_);
    return live_.contains(id);
}

bool RequestBooks::knows(RequestId id) const {
    const ManagerGuard guard(manager_.mutex_);
    return live_.contains(id) ||
           std::ranges::any_of(arriving_, [id](const Arrival& each) { return each.prompt->request->id == id; });
}

bool RequestBooks::is_private(RequestId id) const {
    const ManagerGuard guard(manager_.mutex_);
    return at(id).is_private;
}

bool RequestBooks::is_idle() const {
    const ManagerGuard guard(manager_.mutex_);
    return live_.size() == dummies_.size();
}

std::vector<RequestId> RequestBooks::live() const {
    const ManagerGuard guard(manager_.mutex_);
    std::vector<RequestId> ids;
    for (const auto& [id, live] : live_) {
        ids.push_back(id);
    }
    std::ranges::sort(ids);
    return ids;
}

std::uint64_t RequestBooks::changes() const {
    const ManagerGuard guard(manager_.mutex_);
    return changes_;
}

std::vector<std::uint64_t> RequestBooks::blocks_to_complete(std::span<const RequestId> ids) const {
    const ManagerGuard guard(manager_.mutex_);
    const std::uint32_t unit = state().tokens_per_block();
    const auto length_of = [&](RequestId id) { return std::as_const(state().sequences).at_any(id).length; };
    if (!tokens_ahead_) {
        std::vector<std::uint32_t> left;
        for (const RequestId id : ids) {
            left.push_back(std::max(at(id).tokens_max, length_of(id)) - length_of(id));
        }
        return std::vector(state().windows.size(), ask::blocks_to_grow(state(), ids, left));
    }
    std::vector<std::uint64_t> blocks;
    for (const Window& window : std::as_const(state().windows)) {
        // An answer slides when it has grown so far: a block leaves when a step has ended and the next one is taken.
        const std::uint32_t slides = (*window.config.window_size + 3 * unit - 2) / unit + 1;
        std::uint64_t taken = 0;
        for (const RequestId id : ids) {
            const Live& live = at(id);
            const std::uint32_t reserved = ceil_div(std::max(length_of(id), live.prompt_tokens), unit);
            taken += std::min(std::max(ceil_div(live.tokens_max, unit), reserved) - reserved, slides);
        }
        blocks.push_back(taken);
    }
    return blocks;
}

// The hash of the prompt up to this block's end; none if the block is not full, or has no name.
std::optional<BlockHash> RequestBooks::name_of(Prompt& prompt, std::uint32_t block) const {
    const BlockManagerConfig& config = state().config;
    if (prompt.is_private || block >= prompt.request->num_tokens() / config.tokens_per_block) {
        return std::nullopt;
    }
    if (!prompt.hashes) {
        prompt.hashes.emplace(prompt.request, BlockHasher(config.seed, config.hash_bits), config.tokens_per_block);
    }
    return prompt.hashes->at(block);
}

RequestBooks::Starting RequestBooks::start(std::vector<std::int64_t> free) {
    const ManagerGuard guard(manager_.mutex_);
    check_windows("free", free.size(), state().windows.size());
    Starting starting;
    starting.free = std::move(free);
    for (const auto& [id, live] : live_) {
        if (state().config.block_reuse && live.prompt != nullptr) {
            if (const auto name = name_of(*live.prompt, live.computed / state().tokens_per_block())) {
                starting.computing.insert(*name);
            }
        }
    }
    return starting;
}

RequestBooks::StartAnswer RequestBooks::ask(Starting& starting, Prompt& prompt, std::uint32_t tokens_new_max) {
    const ManagerGuard guard(manager_.mutex_);
    if (state().reuses() && gains_by_waiting(starting, prompt)) {
        return StartAnswer::gains_by_waiting;
    }
    auto blocks = ask::blocks_to_admit(state(), manager_.planner_, prompt.request, tokens_new_max, ahead());
    return starting.fits(std::move(blocks)) ? StartAnswer::fits : StartAnswer::lacks_room;
}

// Whether another request computes the very block that it needs first: in a later iteration that block is cached.
bool RequestBooks::gains_by_waiting(Starting& starting, Prompt& prompt) {
    const std::uint32_t unit = state().tokens_per_block();
    const std::uint32_t tokens = prompt.request->num_tokens();
    const auto reused =
        static_cast<std::uint32_t>(admit::analyze(state(), manager_.planner_, prompt.request, ahead()).tokens);
    starting.tokens_found = reused / unit * unit;
    // The last token is always computed, even if its block is cached.
    const std::uint32_t cached = reused == tokens - 1 ? tokens / unit : reused / unit;
    const auto name = name_of(prompt, cached);
    return name && !starting.computing.insert(*name).second;
}

bool RequestBooks::Starting::fits(std::vector<std::uint64_t> needed) {
    check_windows("blocks", needed.size(), free.size());
    blocks = std::move(needed);
    return std::ranges::equal(blocks, free,
                              [](std::uint64_t taken, std::int64_t room) { return std::cmp_less_equal(taken, room); });
}

void RequestBooks::Starting::charge() {
    if (blocks.empty()) {
        throw std::logic_error("charge: no request was asked about");
    }
    for (std::size_t window = 0; window < free.size(); ++window) {
        free[window] -= static_cast<std::int64_t>(blocks[window]);
    }
}

}  // namespace kvfix
