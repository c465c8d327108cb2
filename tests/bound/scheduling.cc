#include "scheduling.h"

#include <algorithm>

namespace bound {

namespace {

void sort_out(const Request& request, std::size_t place, Capacity& answer) {
    (request.state == State::DISAGG_GENERATION_INIT ? answer.generation_init : answer.fitting).push_back(place);
}

bool waits_to_start(const Request& request) {
    return (request.in_context() && request.first_chunk()) || request.state == State::DISAGG_GENERATION_INIT;
}

// Names the first block that nobody has yet. The request that computes it makes the others wait for it.
std::optional<BlockKey> brings(const Request& request, const Books& books) {
    if (!books.config().reuse || books.variable_window() || !request.in_context()) return std::nullopt;
    return books.find_new_block(request.unique_tokens(0), request);
}

}  // namespace

Capacity CapacityScheduler::without_cache(const std::vector<Request*>& active) const {
    Capacity answer;
    for (std::size_t i = 0; i < active.size() && int(answer.fitting.size()) < max_num_requests; ++i) {
        if (stretch.covers(*active[i])) answer.fitting.push_back(i);
    }
    return answer;
}

Capacity CapacityScheduler::no_evict(const std::vector<Request*>& active, const std::vector<Books*>& books) const {
    Capacity answer;
    std::map<std::pair<std::size_t, int>, int> left;
    for (std::size_t b = 0; b < books.size(); ++b) {
        for (const auto& [size, window] : books[b]->windows()) left[{b, size}] = window->free_blocks();
    }
    const auto need = [&](const Request& request) {
        std::map<std::pair<std::size_t, int>, int> blocks;
        for (const auto& [place, ignored] : left) {
            blocks[place] = books[place.first]->remaining_to_completion(request, place.second);
        }
        return blocks;
    };
    // A prompt that is being computed brings its next block, and waits for nobody else's. Whether it continues is
    // decided anew each time: only generating requests are taken without a question.
    std::set<BlockKey> coming;
    for (const Request* request : active) {
        if (!request->in_context() || request->first_chunk()) continue;
        if (auto key = brings(*request, *books[0])) coming.insert(std::move(*key));
    }
    Places arriving;
    Places pending;
    int taken = 0;
    for (std::size_t i = 0; i < active.size() && taken < max_num_requests; ++i) {
        if (!stretch.covers(*active[i])) continue;
        if (!active[i]->in_generation()) {
            (active[i]->state == State::DISAGG_GENERATION_INIT ? arriving : pending).push_back(i);
            continue;
        }
        for (const auto& [place, blocks] : need(*active[i])) left[place] -= blocks;
        sort_out(*active[i], i, answer);
        ++taken;
    }
    if (policy == CapacityPolicy::STATIC_BATCH && taken > 0) return answer;
    const auto waits_for_another = [&](const Request& request) {
        if (policy == CapacityPolicy::STATIC_BATCH || !request.in_context() || !request.first_chunk()) return false;
        auto key = brings(request, *books[0]);
        return key && !coming.insert(std::move(*key)).second;
    };
    for (const Places* each : {&arriving, &pending}) {
        for (std::size_t i : *each) {
            if (waits_for_another(*active[i])) continue;
            if (taken >= max_num_requests) break;
            const auto wanted = need(*active[i]);
            const bool fits = std::all_of(wanted.begin(), wanted.end(),
                                          [&](const auto& item) { return item.second <= left.at(item.first); });
            if (!fits) break;
            for (const auto& [place, blocks] : wanted) left[place] -= blocks;
            sort_out(*active[i], i, answer);
            ++taken;
        }
    }
    return answer;
}

Capacity CapacityScheduler::max_utilization(const std::vector<Request*>& active, Books& books) const {
    Capacity answer;
    std::map<int, int> promised;
    std::set<BlockKey> coming;
    std::size_t end = active.size();
    const auto try_one = [&](const Request& request) {
        if (int(answer.fitting.size() + answer.generation_init.size()) >= max_num_requests) return false;
        std::map<int, int> wanted = promised;
        for (const auto& [size, window] : books.windows()) {
            wanted[size] += books.needed_one_step(request, two_step_lookahead, size);
            if (!books.scheduling_has_free(wanted[size], size)) return false;
        }
        promised = std::move(wanted);
        return true;
    };
    for (std::size_t i = 0; i < end;) {
        const Request& request = *active[i];
        if (!stretch.covers(request)) {
            ++i;
            continue;
        }
        const auto key = brings(request, books);
        if (key && waits_to_start(request) && coming.count(*key) > 0) {
            ++i;
            continue;
        }
        if (try_one(request)) {
            if (key) coming.insert(*key);
            sort_out(request, i++, answer);
            continue;
        }
        // The newest request that has started makes room. If that is this one, or none is left, the pass is over.
        std::size_t newest = end;
        while (newest > i && (!stretch.covers(*active[newest - 1]) || waits_to_start(*active[newest - 1]))) --newest;
        if (newest == i) break;
        end = newest - 1;
        books.scheduling_remove(active[end]->id);
        answer.paused.push_back(end);
    }
    return answer;
}

Capacity CapacityScheduler::schedule(const std::vector<Request*>& active, Books* books, Books* cross) const {
    if (!has_kv_cache_manager) return without_cache(active);
    check(books != nullptr, "the policy needs a cache manager");
    std::vector<Books*> all{books};
    if (cross != nullptr) all.push_back(cross);
    for (Books* each : all) each->start_scheduling();
    return policy == CapacityPolicy::MAX_UTILIZATION ? max_utilization(active, *books) : no_evict(active, all);
}

int MicroBatchScheduler::cost(const Request& request, int chunk) const {
    const bool last = request.position() + chunk >= request.prompt_len;
    const int drafts = last ? request.num_draft_tokens() : 0;
    const int reusable = request.first_chunk() ? request.estimated_reusable_tokens : 0;
    if (reusable <= 0 || reusable + chunk < request.remaining()) return chunk + drafts;
    return std::max(1, request.remaining() - reusable) + drafts;
}

void MicroBatchScheduler::set_chunks(const std::vector<Request*>& contexts, std::optional<int> budget) const {
    int left = budget.value_or(1 << 30);
    if (chunking->policy == ChunkingPolicy::FIRST_COME_FIRST_SERVED) {
        for (Request* request : contexts) {
            int size = std::min({request->remaining(), left, max_context_length.value_or(1 << 30)});
            if (size < request->remaining()) size -= size % chunking->unit;
            request->set_chunk(std::max(0, size));
            left -= request->chunk();
        }
        return;
    }
    for (Request* request : contexts) request->set_chunk(0);
    for (bool grew = true; grew;) {
        grew = false;
        for (Request* request : contexts) {
            const int before = request->chunk();
            const int after = std::min(before + chunking->unit, request->remaining());
            if (after - before > left || after > max_context_length.value_or(1 << 30) || after == before) continue;
            request->set_chunk(after);
            left -= after - before;
            grew = true;
        }
    }
}

std::pair<Places, Places> MicroBatchScheduler::schedule(const std::vector<Request*>& active,
                                                        const std::set<RequestId>& in_flight, int max_batch_size,
                                                        std::optional<int> max_num_tokens) const {
    Places contexts;
    Places generations;
    int tokens = 0;
    const auto room = [&](int more) { return !max_num_tokens || tokens + more <= *max_num_tokens; };
    for (std::size_t i = 0; i < active.size(); ++i) {
        Request& request = *active[i];
        if (in_flight.count(request.id) > 0 || !stretch.covers(request)) continue;
        if (request.state == State::DISAGG_GENERATION_INIT) continue;
        if (int(contexts.size() + generations.size()) >= max_batch_size) break;
        if (request.in_context()) {
            if (!chunking) {
                request.set_chunk(request.remaining());
                const int more = cost(request, request.chunk());
                if (!room(more)) break;
                tokens += more;
            }
            contexts.push_back(i);
            continue;
        }
        const int more = request.sampling.beam_width + request.num_draft_tokens();
        if (!room(more)) break;
        tokens += more;
        generations.push_back(i);
    }
    if (!chunking) return {contexts, generations};
    std::vector<Request*> chosen;
    for (std::size_t i : contexts) chosen.push_back(active[i]);
    set_chunks(chosen, max_num_tokens ? std::optional<int>(std::max(0, *max_num_tokens - tokens)) : std::nullopt);
    std::erase_if(contexts, [&active](std::size_t i) { return active[i]->chunk() == 0; });
    return {contexts, generations};
}

}  // namespace bound
