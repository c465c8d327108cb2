// fuzz_worlds [--steps N] [--seconds N] [--seed N] [--world N]: runs small servers (world.h) until one breaks a
// promise. A world is determined by its seed: --world runs one again and prints its last calls.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <string>

#include "fuzz/world/evictions.h"
#include "fuzz/world/world.h"

namespace kvfix::world {
namespace {

constexpr std::uint64_t kStepsPerWorld = 2000;
constexpr std::uint64_t kStepsPerEviction = 4;  // steps of a world for each step of the server in evictions.h
constexpr std::size_t kLinesTold = 40;

struct Options {
    std::uint64_t steps = 100'000;
    std::uint64_t seconds = std::numeric_limits<std::uint32_t>::max();
    std::uint64_t seed = 1;
    std::uint64_t world = 0;
};

Options parsed(int argc, char** argv) {
    Options options;
    const std::map<std::string, std::uint64_t*> known{{"--steps", &options.steps},
                                                      {"--seconds", &options.seconds},
                                                      {"--seed", &options.seed},
                                                      {"--world", &options.world}};
    for (int i = 1; i < argc; i += 2) {
        const auto option = known.find(argv[i]);
        char* end = nullptr;
        if (option == known.end() || i + 1 == argc ||
            (*option->second = std::strtoull(argv[i + 1], &end, 10), *end != '\0')) {
            std::fprintf(stderr, "usage: fuzz_worlds [--steps N] [--seconds N] [--seed N] [--world N]\n");
            std::exit(2);
        }
    }
    return options;
}

// Returns what broke, or nothing. `told` gets a line for each call.
std::string lived(std::uint64_t seed, std::uint64_t steps, Tally& tally, std::deque<std::string>* told) {
    World world(seed);
    if (told != nullptr) {
        world.on_call([&, told](const std::string& line) {
            told->push_back(std::to_string(world.tally().steps) + "  " + line);
            if (told->size() > kLinesTold) {
                told->pop_front();
            }
        });
    }
    std::string broken;
    try {
        while (world.tally().steps < steps) {
            world.step();
        }
        world.wind_up();
        Evictions evictions(seed);
        for (std::uint64_t step = 0; step < steps / kStepsPerEviction; ++step) {
            evictions.step();
        }
        tally.evictions += evictions.seen();
    } catch (const std::exception& error) {
        broken = "step " + std::to_string(world.tally().steps) + ": " + error.what();
    }
    tally.add(world.tally());
    return broken;
}

int tell_again(std::uint64_t seed) {
    Tally tally;
    std::deque<std::string> told;
    const std::string broken = lived(seed, kStepsPerWorld, tally, &told);
    for (const std::string& line : told) {
        std::printf("%s\n", line.c_str());
    }
    std::printf("world %llu: %s\n", static_cast<unsigned long long>(seed), broken.empty() ? "well" : broken.c_str());
    return broken.empty() ? 0 : 1;
}

void print(const Tally& tally) {
    const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(
        "%llu steps: %llu requests admitted, %llu deferred, %llu calls refused, %llu promises, %llu asked again, %llu "
        "chunks and %llu "
        "cells compared, %llu copies, %llu tickets failed, %llu pins, %llu suspended, %llu events, %llu evictions\n",
        number(tally.steps), number(tally.admitted), number(tally.deferred), number(tally.refused),
        number(tally.promises), number(tally.asked_again), number(tally.chunks), number(tally.cells),
        number(tally.copies), number(tally.tickets_failed), number(tally.pins), number(tally.suspended),
        number(tally.events), number(tally.evictions));
}

int live_through(const Options& options) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
    Tally tally;
    for (std::uint64_t number = 0; tally.steps < options.steps && std::chrono::steady_clock::now() < end; ++number) {
        const std::uint64_t seed = mixed(options.seed, number) | 1;
        const std::string broken = lived(seed, std::min(kStepsPerWorld, options.steps - tally.steps), tally, nullptr);
        if (!broken.empty()) {
            print(tally);
            std::printf("world %llu, %s\nsee its calls with --world %llu\n", static_cast<unsigned long long>(seed),
                        broken.c_str(), static_cast<unsigned long long>(seed));
            return 1;
        }
    }
    print(tally);
    return 0;
}

}  // namespace
}  // namespace kvfix::world

int main(int argc, char** argv) {
    using namespace kvfix::world;
    const Options options = parsed(argc, argv);
    return options.world != 0 ? tell_again(options.world) : live_through(options);
}
