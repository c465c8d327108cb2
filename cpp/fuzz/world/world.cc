#include "fuzz/world/world.h"

#include <algorithm>
#include <numeric>

namespace kvfix::world {
namespace {

constexpr std::uint64_t kStepsPerAudit = 64;

BlockManagerConfig drawn_config(Random& random) {
    BlockManagerConfig config;
    config.tokens_per_block = random.pick(std::vector<std::uint32_t>{1, 2, 2, 3, 4, 4, 8});
    config.beam_width_max = random.one_in(3) ? random.between(2, 4) : 1;
    const std::uint32_t windows = random.one_in(2) ? 1 : random.between(1, 3);
    const bool sized = windows > 1 || random.one_in(3);
    std::uint32_t size = config.tokens_per_block + random.small(3 * config.tokens_per_block);
    for (std::uint32_t window = 0; window < windows; ++window) {
        const std::uint32_t primary = random.between(4, 8) + random.small(32);
        const std::uint32_t host = random.one_in(3) ? 0 : random.between(1, 40);
        config.windows.push_back({sized ? WindowSize(size) : std::nullopt, primary, host});
        size += random.between(1, 8 * config.tokens_per_block);
    }
    if (sized && random.one_in(2)) {
        config.windows.back().window_size = size + (1U << 20);  // as good as full attention
    }
    config.block_reuse = !random.one_in(16);
    config.partial_reuse = !random.one_in(4);
    config.copy_on_partial_reuse = !random.one_in(4);
    config.offload_priority_min = static_cast<Priority>(random.one_in(2) ? 30 : random.below(101));
    const auto has_host = [](const WindowConfig& window) { return window.blocks_host != 0; };
    if (std::ranges::any_of(config.windows, has_host) && random.one_in(3)) {
        config.host_admission = HostAdmission::adaptive;
    }
    config.events_max = random.pick(std::vector<std::uint32_t>{0, 5, 1U << 20, 1U << 20, 1U << 20});
    config.hash_bits = random.one_in(6) ? random.between(1, 6) : kBlockHashBits;
    config.seed = {random.word(), random.word()};
    return config;
}

}  // namespace

void Tally::add(const Tally& other) {
    steps += other.steps;
    admitted += other.admitted;
    deferred += other.deferred;
    refused += other.refused;
    promises += other.promises;
    asked_again += other.asked_again;
    chunks += other.chunks;
    cells += other.cells;
    copies += other.copies;
    tickets_failed += other.tickets_failed;
    pins += other.pins;
    suspended += other.suspended;
    events += other.events;
    evictions += other.evictions;
}

World::World(std::uint64_t seed)
    : random_(seed),
      twins_(drawn_config(random_)),
      memory_(twins_.config()),
      hasher_(twins_.config().seed, twins_.config().hash_bits),
      mirror_(twins_.config()),
      source_(random_, twins_.config()),
      patience_(random_.pick(std::vector<std::uint32_t>{0, 1, 1, 4, 32})),
      pins_nothing_(random_.one_in(2)) {}

void World::step() {
    struct Act {
        std::uint32_t weight;
        void (World::*act)();
    };
    static const std::vector<Act> acts{{6, &World::admit},
                                       {3, &World::ask},
                                       {6, &World::run_step},
                                       {5, &World::end_ticket},
                                       {3, &World::grow},
                                       {3, &World::decode},
                                       {4, &World::prefill},
                                       {2, &World::rewind},
                                       {3, &World::store_context},
                                       {4, &World::remove},
                                       {1, &World::name_blocks},
                                       {1, &World::truncate},
                                       {2, &World::suspend},
                                       {3, &World::resume},
                                       {1, &World::remove_suspended},
                                       {1, &World::misuse_suspended},
                                       {2, &World::pin_something},
                                       {3, &World::unpin},
                                       {1, &World::pass_time},
                                       {1, &World::expect_matches_mirror},
                                       {1, &World::expect_conserved},
                                       {1, &World::misuse}};
    static const std::uint32_t weights = std::accumulate(
        acts.begin(), acts.end(), 0U, [](std::uint32_t sum, const Act& act) { return sum + act.weight; });
    std::uint32_t drawn = random_.below(weights);
    const auto chosen = std::ranges::find_if(acts, [&](const Act& act) {
        const bool here = drawn < act.weight;
        drawn -= here ? 0 : act.weight;
        return here;
    });
    (this->*chosen->act)();
    settle();
    if (++tally_.steps % kStepsPerAudit == 0) {
        twins_.check_invariants();
    }
    tally_.refused = twins_.refused();
}

void World::wind_up() {
    run_step();
    while (!memory_.flights().empty()) {
        end(memory_.flights().begin()->first, random_.one_in(5));
    }
    while (!pins_.empty()) {
        const Pin pin = pins_.back();
        promise(bool(twins_.change([&](BlockManager& manager) {
                    manager.unpin_blocks_by_id({&pin.id, 1}, pin.place.tier);
                    return Nothing{};
                })),
                "a pin cannot be ended");
        forget_pins({pin});
    }
    while (!suspended_.empty()) {
        const RequestId id = suspended_.begin()->first;
        promise(bool(twins_.change(
                    [&](BlockManager& manager) { return manager.remove_sequence(id, true, false, std::nullopt); })),
                "a suspended request cannot be ended");
        suspended_.erase(id);
    }
    while (!live_.empty()) {
        const RequestId id = live_.begin()->first;
        promise(bool(twins_.change(
                    [&](BlockManager& manager) { return manager.remove_sequence(id, true, false, std::nullopt); })),
                "a request cannot be ended");
        live_.erase(id);
    }
    expect_conserved();
    expect_matches_mirror();
    twins_.change([](BlockManager& manager) {
        manager.reset_reuse_state();
        return Nothing{};
    });
    read_events();
    promise(mirror_.size() == 0, "events leave blocks in the tree after a reset");
    const auto stats = twins_.look([](BlockManager& manager) { return manager.get_kv_cache_stats(); });
    for (const WindowStats& window : stats.answer.windows) {
        promise(window.primary.free == window.primary.blocks && window.host.free == window.host.blocks,
                "slots are not free when everything has ended");
    }
}

}  // namespace kvfix::world
