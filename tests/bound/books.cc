#include "books.h"

#include <algorithm>

#include "entry.h"

namespace bound {

Books::Books(Config config, Rules& rules) : config_(std::move(config)), rules_(rules) {
    check(config_.tokens_per_block > 0, "tokens_per_block must be positive");
    check(!config_.blocks_per_window.empty(), "blocks_per_window is empty");
    check(!config_.max_attention_window_vec.empty(), "max_attention_window_vec is empty");
    for (int window : config_.max_attention_window_vec) {
        check(config_.blocks_per_window.count(window) == 1, "no blocks for window " + std::to_string(window));
    }
    const WindowOptions options{config_.tokens_per_block, config_.onboard, config_.partial_reuse,
                                config_.copy_on_partial_reuse,
                                config_.offload_from_priority.value_or(kOffloadFromPriority)};
    for (const auto& [size, blocks] : config_.blocks_per_window) {
        const bool sliding = size < config_.max_sequence_length;
        windows_[size] =
            std::make_unique<Window>(size, std::get<0>(blocks), std::get<1>(blocks), sliding, options, rules_);
    }
}

const Window& Books::window(int size) const {
    const auto found = windows_.find(size);
    check(found != windows_.end(), "there is no window " + std::to_string(size));
    return *found->second;
}

const Window& Books::only_window() const {
    check(!variable_window(), "not possible with several attention windows");
    return *windows_.begin()->second;
}

const Sequence& Books::living(RequestId id) const {
    const auto found = sequences_.find(id);
    check(found != sequences_.end(), "unknown sequence " + std::to_string(id));
    return found->second;
}

Sequence& Books::living(RequestId id) { return const_cast<Sequence&>(std::as_const(*this).living(id)); }

int Books::temporary_window(int window) const {
    if (!config_.temp_window || window >= config_.temp_window->max_input_len) return 0;
    const int beyond = config_.temp_window->max_input_len - window;
    return config_.temp_window->paged_context_fmha ? std::min(config_.temp_window->max_num_tokens, beyond) : beyond;
}

int Books::context_length(const Window& window, int input_length) const {
    return std::min(input_length, window.size() + temporary_window(window.size()));
}

int Books::max_blocks_per_seq() const {
    int longest = config_.max_sequence_length;
    for (const auto& [size, window] : windows_) longest = std::max(longest, size + temporary_window(size));
    return ceil_div(longest, config_.tokens_per_block);
}

std::vector<BlockKey> Books::keys(const Request& request, const Tokens& tokens, int length, bool partial) const {
    const int unit = config_.tokens_per_block;
    const int end = std::clamp(length, 0, int(tokens.size()));
    std::vector<BlockKey> answer;
    for (int begin = 0; begin < end && (partial || begin + unit <= end); begin += unit) {
        const int stop = std::min(begin + unit, end);
        BlockKey key{request.extra_ids.has_value(), request.lora_task_id, {}, request.cache_salt_id, {}};
        key.unique_tokens.assign(tokens.begin() + begin, tokens.begin() + stop);
        const std::size_t images =
            request.multimodal_hashes && request.multimodal_positions && request.multimodal_lengths
                ? std::min({request.multimodal_hashes->size(), request.multimodal_positions->size(),
                            request.multimodal_lengths->size()})
                : 0;
        for (std::size_t i = 0; i < images; ++i) {
            const int first = (*request.multimodal_positions)[i];
            if (first >= stop || first + (*request.multimodal_lengths)[i] <= begin) continue;
            const auto& hash = (*request.multimodal_hashes)[i];
            key.images.insert(key.images.end(), hash.begin(), hash.end());
            key.images.push_back(first - begin);
        }
        answer.push_back(std::move(key));
    }
    return answer;
}

std::vector<BlockKey> Books::keys_to_match(const Request& request, int length) const {
    Tokens tokens = request.unique_tokens(0);
    if (config_.cache_type == CacheType::CROSS && request.encoder_tokens) {
        tokens.clear();
        for (Token token : *request.encoder_tokens) tokens.push_back({token, 0});
    }
    // The last token must be computed, because its logits are wanted.
    return keys(request, tokens, length - 1, true);
}

Sequence& Books::open(const Admission& admission) {
    const auto [place, fresh] = sequences_.try_emplace(admission.id);
    check(fresh, "sequence " + std::to_string(admission.id) + " is there already");
    place->second.beams = admission.beams;
    place->second.num_tokens = admission.input_length;
    for (auto& [size, window] : windows_) {
        window->robbed.erase(admission.id);
        place->second.windows[size].beams.resize(std::size_t(admission.beams));
    }
    return place->second;
}

void Books::settle(const Admission& admission, int matched, int loaded) const {
    admission.request->set_prepopulated(matched + loaded, config_.tokens_per_block);
}

void Books::admit(const Admission& admission, const Query& query, Entry& entry) {
    const bool asks = query && !admission.request->is_dummy;
    int least = admission.input_length;
    for (auto& [size, window] : windows_) {
        Sequence& sequence = living(admission.id);
        Held& held = sequence.windows[size];
        const int length = context_length(*window, admission.input_length);
        const int blocks = ceil_div(length, config_.tokens_per_block);
        if (!config_.reuse) {
            const bool share = config_.cache_type == CacheType::CROSS || length % config_.tokens_per_block == 0;
            window->admit_without_reuse(admission.id, held, blocks, share);
            continue;
        }
        const auto wanted = keys_to_match(*admission.request, length);
        if (held.claimed.empty()) {
            window->admit(admission.id, held, wanted, blocks, admission.request);
        } else {
            window->admit_claimed(admission.id, held, wanted, blocks, admission.request);
        }
        least = std::min(least, held.matched);
        if (rules_.one_query) continue;
        const int matched = held.matched;
        if (asks) entry.unlock();
        const int loaded = asks ? query(*admission.request, matched) : 0;
        if (asks) entry.lock();
        settle(admission, matched, loaded);
    }
    if (config_.reuse && rules_.one_query) {
        settle(admission, least, asks ? query(*admission.request, least) : 0);
    }
}

void Books::add(const Admission& admission, const Query& query) {
    Entry entry(*this);
    open(admission);
    const CacheCounts before = counts();
    admit(admission, query, entry);
    const CacheCounts after = counts();
    CacheCounts& mine = admission.request->counts;
    mine.alloc_total += after.alloc_total - before.alloc_total;
    mine.alloc_new += after.alloc_new - before.alloc_new;
    mine.reused += after.reused - before.reused;
    mine.missed += after.missed - before.missed;
}

void Books::add_batch(const std::vector<Admission>& batch, const Query& query) {
    Entry entry(*this);
    for (const Admission& admission : batch) {
        Sequence& sequence = open(admission);
        for (auto& [size, window] : windows_) {
            if (!config_.reuse) continue;
            const int length = context_length(*window, admission.input_length);
            window->claim_prefix(sequence.windows[size], keys_to_match(*admission.request, length),
                                 ceil_div(length, config_.tokens_per_block));
        }
    }
    for (const Admission& admission : batch) {
        const CacheCounts before = counts();
        admit(admission, query, entry);
        const CacheCounts after = counts();
        CacheCounts& mine = admission.request->counts;
        mine.alloc_total += after.alloc_total - before.alloc_total;
        mine.alloc_new += after.alloc_new - before.alloc_new;
        mine.reused += after.reused - before.reused;
        mine.missed += after.missed - before.missed;
    }
}

void Books::add_token(RequestId id) {
    Entry entry(*this);
    Sequence& sequence = living(id);
    ++sequence.num_tokens;
    for (auto& [size, window] : windows_) window->grow(id, sequence.windows[size], sequence.num_tokens);
}

void Books::rewind(RequestId id, int tokens) {
    Entry entry(*this);
    Sequence& sequence = living(id);
    sequence.num_tokens -= tokens;
    for (auto& [size, window] : windows_) window->shrink(sequence.windows[size], sequence.num_tokens);
}

void Books::note(Sequence& sequence, const Request& request) {
    // A position where admission put it proves nothing: a connector may still be loading up to it.
    const int position = request.position() > request.prepopulated() ? request.position() : 0;
    const int computed = request.num_generated() > 0 ? request.num_tokens(0) - 1 : position;
    for (auto& [size, held] : sequence.windows) windows_.at(size)->note_computed(held, computed);
}

int Books::stored_length(const Request& request) const {
    const int all = request.num_tokens(0) - 1;
    return rules_.computed_only && request.num_generated() == 0 ? std::min(request.position(), all) : all;
}

std::vector<int> Books::store(Sequence& sequence, const Request& request, int length, bool partial, bool pin) {
    std::vector<int> first;
    const auto wanted = keys(request, request.unique_tokens(0), length, partial);
    for (auto& [size, window] : windows_) {
        auto stored = window->store(wanted, sequence.windows[size].beams[0], pin);
        // Unpinning knows only the first window.
        if (window == windows_.begin()->second) first = std::move(stored);
    }
    return first;
}

void Books::remove(RequestId id, const Request& request) {
    Entry entry(*this);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    Sequence& sequence = found->second;
    note(sequence, request);
    const bool any_robbed = std::any_of(windows_.begin(), windows_.end(),
                                        [id](const auto& window) { return window.second->robbed.count(id) > 0; });
    const bool stores = config_.reuse && !request.is_dummy && sequence.beams == 1;
    const auto wanted = keys(request, request.unique_tokens(0), stored_length(request), true);
    for (auto& [size, window] : windows_) {
        const bool robbed = rules_.store_to_position ? any_robbed : window->robbed.count(id) > 0;
        Held& held = sequence.windows[size];
        if (stores && !robbed) window->store(wanted, held.beams[0], false);
        window->release_all(held);
        window->robbed.erase(id);
    }
    sequences_.erase(found);
}

void Books::store_context(const Request& request) {
    Entry entry(*this);
    const auto found = sequences_.find(request.id);
    if (found == sequences_.end()) return;
    note(found->second, request);
    if (!config_.reuse || request.is_dummy) return;
    const int all = request.num_tokens(0) - 1;
    const bool by_position = rules_.store_to_position || rules_.computed_only;
    const auto wanted =
        keys(request, request.unique_tokens(0), by_position ? std::min(request.position(), all) : all, false);
    for (auto& [size, window] : windows_) {
        if (window->sliding() && !rules_.store_to_position) continue;
        window->store(wanted, found->second.windows[size].beams[0], false);
    }
}

void Books::store_new_block(const Request& request) {
    Entry entry(*this);
    Sequence& sequence = living(request.id);
    note(sequence, request);
    const int length = request.num_tokens(0) - 1;
    if (sequence.beams > 1 || !config_.reuse || length % config_.tokens_per_block != 0) return;
    store(sequence, request, length, true, false);
}

std::vector<int> Books::store_for_reuse(RequestId id, const Request& request, bool pin) {
    Entry entry(*this);
    Sequence& sequence = living(id);
    note(sequence, request);
    return store(sequence, request, stored_length(request), true, pin);
}

}  // namespace bound
