// How a sequence gets its blocks: one by one, or all claims first.
#include <algorithm>

#include "window.h"

namespace bound {

namespace {

std::size_t common_prefix(const Tokens& one, const Tokens& other) {
    const std::size_t limit = std::min(one.size(), other.size());
    std::size_t same = 0;
    while (same < limit && one[same] == other[same]) ++same;
    return same;
}

bool same_root(const BlockKey& one, const BlockKey& other) {
    return one.lora_task_id == other.lora_task_id && one.cache_salt_id == other.cache_salt_id;
}

std::optional<int> priority_of(const Request* request, int token) {
    return request != nullptr && request->retention ? request->retention->priority_at(token) : std::nullopt;
}

void note_tokens(Held& held, const std::vector<BlockKey>& keys, std::size_t place) {
    if (place >= keys.size()) return;
    for (auto& beam : held.beams) beam.back()->key = keys[place];
}

}  // namespace

Match Window::find(Block& from, const BlockKey& key) const {
    const auto usable = [this](const Block& block) {
        return options_.partial_reuse && (options_.copy_on_partial_reuse || (block.refs == 0 && block.next.empty()));
    };
    const int length = int(key.unique_tokens.size());
    if (const auto found = from.next.find(key); length > 0 && found != from.next.end()) {
        Block& block = *found->second;
        return {&block, length, !block.full};  // an exact match is found before any switch is looked at
    }
    Match best;
    if (!key.images.empty()) return best;
    for (const auto& [other, block] : from.next) {
        const int same = int(common_prefix(key.unique_tokens, other.unique_tokens));
        if (same > best.tokens && same_root(key, other) && other.images.empty() && usable(*block)) {
            best = {block, same, true};
        }
    }
    return best;
}

void Window::claim(Block& block) {
    dequeue(block);
    ++block.refs;
}

void Window::add_block(RequestId id, Held& held, bool shared, int priority) {
    Block* block = nullptr;
    for (auto& beam : held.beams) {
        if (block == nullptr || !shared) block = &take_free(priority, id);
        ++block->refs;
        beam.push_back(block);
    }
}

Block& Window::settle_partial(RequestId id, Held& held, const Match& match, const BlockKey& key) {
    Block& source = *match.block;
    const int kept = std::min(source.computed, match.tokens);
    held.partly_computed = kept;
    // Each claimed block already carries one reference of this sequence.
    const int own = held.claimed.empty() ? 0 : 1;
    if (source.refs <= own && source.next.empty()) {
        unlink(source);
        dequeue(source);
        source.computed = kept;
        return source;
    }
    Block& fresh = take_free(source.priority, id);
    if (&fresh != &source) {
        // Making room may have offloaded the source. Its bytes then come from where it is now.
        record(source.host ? "onboard" : "copy", source.slot, fresh.slot, key, match.tokens);
        ++copied;
    }
    fresh.computed = kept;
    fresh.key = key;
    return fresh;
}

void Window::place_match(RequestId id, Held& held, const Match& match, const BlockKey& key,
                         std::optional<int> priority) {
    Block& block = match.partial ? settle_partial(id, held, match, key) : *match.block;
    dequeue(block);
    // A copy keeps the priority of its source, whatever the request asks for.
    if (priority && &block == match.block) block.priority = *priority;
    for (auto& beam : held.beams) {
        ++block.refs;
        beam.push_back(&block);
    }
    held.matched += match.tokens;
    bring_back(block);
    ++counts.reused;
}

void Window::admit(RequestId id, Held& held, const std::vector<BlockKey>& keys, int blocks, const Request* request) {
    // The last block of several beams will be written to, so each beam needs its own.
    const int shared = held.beams.size() > 1 ? blocks - 1 : blocks;
    Block* from = &root_;
    for (int i = 0; i < blocks; ++i) {
        const auto priority = priority_of(request, i * options_.tokens_per_block);
        const auto place = std::size_t(i);
        const Match match = from != nullptr && i < shared && place < keys.size() ? find(*from, keys[place]) : Match{};
        if (match.block == nullptr) {
            add_block(id, held, i < shared, priority.value_or(kDefaultPriority));
            note_tokens(held, keys, place);
            from = nullptr;
            ++counts.missed;
            continue;
        }
        place_match(id, held, match, keys[place], priority);
        from = match.partial ? nullptr : match.block;
    }
}

void Window::claim_prefix(Held& held, const std::vector<BlockKey>& keys, int blocks) {
    const int shared = held.beams.size() > 1 ? blocks - 1 : blocks;
    Block* from = &root_;
    for (std::size_t i = 0; from != nullptr && i < keys.size() && int(i) < shared; ++i) {
        const Match match = find(*from, keys[i]);
        if (match.block == nullptr) return;
        claim(*match.block);
        held.claimed.push_back(match);
        from = match.partial ? nullptr : match.block;
    }
}

void Window::admit_claimed(RequestId id, Held& held, const std::vector<BlockKey>& keys, int blocks,
                           const Request* request) {
    const int shared = held.beams.size() > 1 ? blocks - 1 : blocks;
    int done = 0;
    while (!held.claimed.empty()) {
        const Match match = held.claimed.front();
        place_match(id, held, match, keys[std::size_t(done)], priority_of(request, done * options_.tokens_per_block));
        held.claimed.erase(held.claimed.begin());
        release(*match.block);
        ++done;
    }
    for (; done < blocks; ++done) {
        const auto priority = priority_of(request, done * options_.tokens_per_block);
        add_block(id, held, done < shared, priority.value_or(kDefaultPriority));
        note_tokens(held, keys, std::size_t(done));
        ++counts.missed;
    }
}

void Window::admit_without_reuse(RequestId id, Held& held, int blocks, bool share_last) {
    check(blocks > 0, "a sequence needs at least one block");
    for (int i = 0; i < blocks; ++i) add_block(id, held, i + 1 < blocks || share_last, kDefaultPriority);
}

}  // namespace bound
