#include "window.h"

#include <algorithm>

namespace bound {

Window::Window(int size, int primary, int host, bool sliding, const WindowOptions& options, const Rules& rules)
    : size_(size), primary_(primary), host_(host), sliding_(sliding), options_(options), rules_(rules) {
    check(primary >= 0 && host >= 0, "a pool cannot have a negative number of blocks");
    blocks_.resize(std::size_t(primary + host));
    for (int id = 0; id < primary + host; ++id) {
        Block& block = blocks_[std::size_t(id)];
        block.id = id;
        block.host = id >= primary;
        block.slot = block.host ? id - primary : id;
        enqueue(block);
    }
    root_.id = -1;
}

const Block* Window::block(int id) const {
    return id < 0 || id >= int(blocks_.size()) ? nullptr : &blocks_[std::size_t(id)];
}

void Window::enqueue(Block& block, bool to_front) {
    dequeue(block);
    auto& queue = queues_[block.host][block.priority];
    block.place = queue.insert(to_front ? queue.begin() : queue.end(), &block);
    block.queued = true;
    ++queued_[block.host];
}

void Window::dequeue(Block& block) {
    if (!block.queued) return;
    queues_[block.host][block.priority].erase(block.place);
    block.queued = false;
    --queued_[block.host];
}

void Window::release(Block& block, bool to_front) {
    if (block.refs > 0) --block.refs;
    if (block.refs == 0) enqueue(block, to_front);
}

void Window::unlink(Block& block) {
    // Nothing can find a child whose parent is gone, so it goes too. Its slot keeps its bytes until somebody takes it.
    while (!block.next.empty()) unlink(*block.next.begin()->second);
    if (block.parent != nullptr) block.parent->next.erase(block.key);
    block.parent = nullptr;  // the tokens stay, so that an offload takes it for one with contents
    block.full = false;
}

void Window::swap_places(Block& one, Block& other) {
    std::swap(one.host, other.host);
    std::swap(one.slot, other.slot);
}

void Window::record(const char* kind, int source, int target, const BlockKey& key, int tokens) {
    Transfer transfer{kind, size_, source, target, {}};
    for (const UniqueToken& token : key.unique_tokens) {
        if (int(transfer.tokens.size()) < tokens) transfer.tokens.push_back(token.token_id);
    }
    transfers.push_back(std::move(transfer));
}

Block& Window::take_free(int priority, std::optional<RequestId> owner) {
    const auto front = [this](bool host) -> Block& {
        for (auto& [ignored, queue] : queues_[host]) {
            if (!queue.empty()) return *queue.front();
        }
        throw std::runtime_error("[kvfix_bound] no free blocks left");
    };
    Block* block = &front(false);
    // Tokens are noted at admission, and stay when a request ends unstored: such a block is offloaded like any other.
    const bool has_tokens = !block->key.unique_tokens.empty();
    if (!has_tokens) ++counts.alloc_new;
    ++counts.alloc_total;
    if (has_tokens && block->priority >= options_.offload_from_priority && queued_[1] > 0 && options_.onboard) {
        Block& spare = front(true);
        unlink(spare);
        record("offload", block->slot, spare.slot, block->key, int(block->key.unique_tokens.size()));
        dequeue(*block);
        dequeue(spare);
        swap_places(*block, spare);
        enqueue(*block);
        ++offloaded;
        block = &spare;
    } else {
        unlink(*block);
        dequeue(*block);
    }
    if (block->taken_by && block->taken_by != owner) robbed.insert(*block->taken_by);
    block->taken_by = owner;
    block->priority = priority;
    block->computed = 0;
    return *block;
}

void Window::bring_back(Block& block) {
    if (!block.host || !options_.onboard) return;
    Block& spare = take_free(kDefaultPriority, block.taken_by);
    record("onboard", block.slot, spare.slot, block.key, int(block.key.unique_tokens.size()));
    swap_places(block, spare);
    enqueue(spare);
    ++onboarded;
}

void Window::grow(RequestId id, Held& held, int num_tokens) {
    const int unit = options_.tokens_per_block;
    while (sliding_ && held.front_removed < int(held.beams[0].size()) &&
           num_tokens - held.front_removed * unit >= size_ + unit) {
        check(held.beams.size() == 1, "blocks of several beams cannot leave the window");
        release(*held.beams[0][std::size_t(held.front_removed)]);
        ++held.front_removed;
    }
    if ((num_tokens - 1) % unit == 0) add_block(id, held, held.beams.size() == 1, kDefaultPriority);
}

void Window::shrink(Held& held, int num_tokens) {
    const auto wanted = std::size_t(ceil_div(std::max(0, num_tokens), options_.tokens_per_block));
    while (held.beams[0].size() > std::max(wanted, std::size_t(held.front_removed))) {
        for (auto& beam : held.beams) {
            // An emptied block is the first to be taken again, because nothing in it is worth keeping.
            release(*beam.back(), true);
            beam.pop_back();
        }
    }
}

void Window::release_all(Held& held) {
    for (const Match& match : held.claimed) release(*match.block);
    held.claimed.clear();
    for (std::size_t i = held.beams.empty() ? 0 : held.beams[0].size(); i > std::size_t(held.front_removed); --i) {
        for (auto& beam : held.beams) release(*beam[i - 1]);
    }
    held.beams.clear();
}

void Window::note_computed(Held& held, int computed) {
    const int unit = options_.tokens_per_block;
    for (int i = 0; i < int(held.beams[0].size()); ++i) {
        Block& block = *held.beams[0][std::size_t(i)];
        const int here = std::clamp(computed - i * unit, 0, unit);
        const int matched = std::clamp(held.matched - i * unit, 0, unit);
        if (i < held.front_removed || matched == unit) continue;
        const int before = matched > 0 ? held.partly_computed : 0;
        block.computed = std::max(block.computed, before + std::max(0, here - matched));
    }
}

std::vector<int> Window::store(const std::vector<BlockKey>& keys, const std::vector<Block*>& blocks, bool pin) {
    std::vector<int> answer;
    Block* from = &root_;
    for (std::size_t i = 0; i < std::min(keys.size(), blocks.size()); ++i) {
        if (const auto found = from->next.find(keys[i]); found != from->next.end()) {
            from = found->second;
        } else {
            Block& block = *blocks[i];
            unlink(block);
            block.key = keys[i];
            block.full = int(keys[i].unique_tokens.size()) == options_.tokens_per_block;
            block.parent = from;
            from->next[keys[i]] = &block;
            from = &block;
        }
        if (pin) {
            if (rules_.pins_leave_queue) dequeue(*from);
            ++from->refs;
        }
        answer.push_back(from->id);
    }
    return answer;
}

void Window::pin(const Held& held) {
    for (const auto& beam : held.beams) {
        for (std::size_t i = std::size_t(held.front_removed); i < beam.size(); ++i) ++beam[i]->refs;
    }
}

void Window::unpin_chain(int id) {
    if (block(id) == nullptr) return;
    for (Block* step = &blocks_[std::size_t(id)]; step != nullptr && step != &root_; step = step->parent) {
        release(*step);
    }
}

void Window::unpin(int id) {
    check(block(id) != nullptr, "there is no block " + std::to_string(id));
    release(blocks_[std::size_t(id)]);
}

void Window::forget_all() {
    while (!root_.next.empty()) unlink(*root_.next.begin()->second);
}

std::vector<Block*> Window::walk(const std::vector<BlockKey>& keys) const {
    std::vector<Block*> answer;
    const Block* from = &root_;
    for (const BlockKey& key : keys) {
        const auto found = from->next.find(key);
        if (found == from->next.end()) break;
        answer.push_back(found->second);
        from = found->second;
    }
    return answer;
}

void Window::start_scheduling(const std::vector<const Held*>& living) {
    scheduling_free = queued_[0];
    for (const Held* held : living) {
        for (const auto& beam : held->beams) {
            for (Block* block : beam) block->scheduling_refs = block->refs;
        }
    }
}

void Window::scheduling_release(const Held& held) {
    for (const auto& beam : held.beams) {
        for (std::size_t i = std::size_t(held.front_removed); i < beam.size(); ++i) {
            if (--beam[i]->scheduling_refs == 0) ++scheduling_free;
        }
    }
}

}  // namespace bound
