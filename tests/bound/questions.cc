// Questions that the books answer without changing anything that is cached.
#include <algorithm>

#include "books.h"
#include "entry.h"

namespace bound {

void Books::pin(RequestId id) {
    Entry entry(*this);
    Sequence& sequence = living(id);
    for (auto& [size, window] : windows_) window->pin(sequence.windows[size]);
}

void Books::unpin(const std::vector<int>& ids) {
    Entry entry(*this);
    for (int id : ids) windows_.begin()->second->unpin(id);
}

void Books::unpin_chain(int id) {
    Entry entry(*this);
    windows_.begin()->second->unpin_chain(id);
}

void Books::reset_reuse() {
    Entry entry(*this);
    for (auto& [size, window] : windows_) window->forget_all();
}

std::optional<BlockKey> Books::find_new_block(const Tokens& tokens, const Request& request) const {
    const Window& window = only_window();
    Entry entry(*this);
    const auto wanted = keys(request, tokens, int(tokens.size()), false);
    const std::size_t cached = window.walk(wanted).size();
    if (cached == wanted.size()) return std::nullopt;
    BlockKey answer;
    answer.lora_task_id = request.lora_task_id;
    for (std::size_t i = 0; i <= cached; ++i) {
        const Tokens& block = wanted[i].unique_tokens;
        answer.unique_tokens.insert(answer.unique_tokens.end(), block.begin(), block.end());
    }
    return answer;
}

int Books::count_reusable(const Tokens& tokens, const Request& request, bool only_allocated) const {
    const Window& window = only_window();
    Entry entry(*this);
    const auto blocks = window.walk(keys(request, tokens, int(tokens.size()), false));
    return int(std::count_if(blocks.begin(), blocks.end(),
                             [=](const Block* block) { return !only_allocated || block->refs > 0; }));
}

PrefixSummary Books::analyze(const Tokens& tokens, const Request& request) const {
    Entry entry(*this);
    // With several windows, the one that keeps most decides what an estimate may promise.
    const Window& window = *windows_.rbegin()->second;
    const auto wanted = keys(request, tokens, int(tokens.size()), false);
    const auto blocks = window.walk(wanted);
    PrefixSummary answer;
    answer.all = int(blocks.size());
    for (const Block* block : blocks) answer.allocated += block->refs > 0 ? 1 : 0;
    if (blocks.size() < wanted.size()) answer.first_new = wanted[blocks.size()];
    return answer;
}

int Books::needed_one_step(const Request& request, bool two_steps, int window_size) const {
    const int unit = config_.tokens_per_block;
    const int beams = request.sampling.beam_width;
    const bool cross = config_.cache_type == CacheType::CROSS;
    window(window_size);
    if ((request.in_context() && request.first_chunk()) || request.state == State::DISAGG_GENERATION_INIT) {
        const int prompt = cross ? request.encoder_output_len.value_or(0) : request.prompt_len;
        const int length = std::min(prompt + request.num_draft_tokens(), window_size + request.max_new_tokens);
        int needed = length / unit + (length % unit > 0 ? beams : 0);
        if (rules_.estimates && config_.reuse) {
            const int shared = analyze(request.unique_tokens(0), request).allocated;
            needed -= std::min(shared, length / unit);
            request.estimated_reusable_tokens = std::min(shared * unit, std::max(0, request.prompt_len - 1));
        }
        return needed;
    }
    if (!request.in_generation() || cross) return 0;
    Entry entry(*this);
    const int now = living(request.id).num_tokens;
    const int left = request.max_new_tokens - (now - request.prompt_len);
    const int next = now + std::min((two_steps ? 2 : 1) * (1 + request.num_draft_tokens()), left);
    if (next > window_size + temporary_window(window_size)) return 0;
    return (ceil_div(next, unit) - ceil_div(now, unit)) * beams;
}

int Books::remaining_to_completion(const Request& request, int window_size) const {
    const int unit = config_.tokens_per_block;
    window(window_size);
    if (config_.cache_type == CacheType::CROSS) {
        const bool starts = request.in_context() && request.position() == 0;
        return starts ? ceil_div(request.encoder_output_len.value_or(0), unit) : 0;
    }
    const int beams = request.sampling.beam_width;
    const int limit = window_size + temporary_window(window_size);
    const int whole = request.prompt_len + request.max_new_tokens;
    const int context = std::min(request.prompt_len, limit) / unit;
    const int total = ceil_div(std::min(whole, limit), unit);
    int held = 0;
    {
        Entry entry(*this);
        if (const auto found = sequences_.find(request.id); found != sequences_.end()) {
            const auto& by_beam = found->second.windows.at(window_size).beams;
            held = by_beam.empty() ? 0 : int(by_beam[0].size());
        }
    }
    // A sliding window takes its next block before it lets go of the oldest.
    const int last = ceil_div(whole, unit);
    const bool crosses = last > ceil_div(request.num_tokens(0), unit) && last > total;
    const int extra = whole > window_size && crosses ? 1 : 0;
    if (held < context) return context - held + (total - context + extra) * beams;
    return std::max(0, (total - held + extra) * beams);
}

void Books::start_scheduling() {
    Entry entry(*this);
    for (auto& [size, window] : windows_) {
        std::vector<const Held*> held;
        for (const auto& [id, sequence] : sequences_) held.push_back(&sequence.windows.at(size));
        window->start_scheduling(held);
    }
}

bool Books::scheduling_has_free(int blocks, int window_size) const {
    return window(window_size).scheduling_free >= blocks;
}

void Books::scheduling_remove(RequestId id) {
    Entry entry(*this);
    for (auto& [size, held] : living(id).windows) windows_.at(size)->scheduling_release(held);
}

std::vector<std::vector<int>> Books::block_ids(RequestId id, int window_size) const {
    Entry entry(*this);
    window(window_size);
    std::vector<std::vector<int>> answer;
    for (const auto& beam : living(id).windows.at(window_size).beams) {
        answer.emplace_back();
        for (const Block* block : beam) answer.back().push_back(block->id);
    }
    return answer;
}

std::vector<std::vector<int>> Books::slots(RequestId id, int window_size) const {
    Entry entry(*this);
    window(window_size);
    std::vector<std::vector<int>> answer;
    for (const auto& beam : living(id).windows.at(window_size).beams) {
        answer.emplace_back();
        for (const Block* block : beam) answer.back().push_back(block->slot);
    }
    return answer;
}

void Books::visit(RequestId id, const Visitor& visitor) const {
    Entry entry(*this);
    for (const auto& [size, held] : living(id).windows) {
        for (std::size_t beam = 0; beam < held.beams.size(); ++beam) {
            for (std::size_t i = 0; i < held.beams[beam].size(); ++i) {
                const Block& block = *held.beams[beam][i];
                visitor(size, int(beam), int(i), block.slot, block.host);
            }
        }
    }
}

int Books::token_count(RequestId id) const {
    Entry entry(*this);
    return living(id).num_tokens;
}

int Books::last_block_id(RequestId id) const {
    Entry entry(*this);
    const auto& beam = living(id).windows.begin()->second.beams.at(0);
    check(!beam.empty(), "the sequence holds no block");
    return beam.back()->id;
}

int Books::priority_of(int block_id, int window_size) const {
    Entry entry(*this);
    const Block* block = window(window_size).block(block_id);
    return block == nullptr ? kDefaultPriority : block->priority;
}

CacheCounts Books::counts() const {
    CacheCounts sum;
    for (const auto& [size, window] : windows_) {
        sum.alloc_total += window->counts.alloc_total;
        sum.alloc_new += window->counts.alloc_new;
        sum.reused += window->counts.reused;
        sum.missed += window->counts.missed;
    }
    return sum;
}

std::vector<Transfer> Books::take_transfers() {
    Entry entry(*this);
    std::vector<Transfer> answer;
    for (auto& [size, window] : windows_) {
        answer.insert(answer.end(), window->transfers.begin(), window->transfers.end());
        window->transfers.clear();
    }
    return answer;
}

std::vector<std::pair<std::vector<Token>, int>> Books::cached() const {
    Entry entry(*this);
    std::vector<std::pair<std::vector<Token>, int>> answer;
    const std::function<void(const Block&, std::vector<Token>, int)> descend = [&](const Block& block,
                                                                                   std::vector<Token> tokens, int sum) {
        for (const UniqueToken& token : block.key.unique_tokens) tokens.push_back(token.token_id);
        sum += std::min(block.computed, int(block.key.unique_tokens.size()));
        if (block.next.empty() && !tokens.empty()) answer.emplace_back(tokens, sum);
        for (const auto& [key, child] : block.next) descend(*child, tokens, sum);
    };
    descend(windows_.begin()->second->root(), {}, 0);
    return answer;
}

}  // namespace bound
