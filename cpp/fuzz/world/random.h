// Numbers drawn from a seed. They are the same on every machine, so a world can be run again.
#pragma once

#include <cstdint>
#include <vector>

namespace kvfix::world {

constexpr std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

constexpr std::uint64_t mixed(std::uint64_t first, std::uint64_t second) { return mixed(mixed(first) ^ second); }

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(mixed(seed)) {}

    std::uint64_t word() { return mixed(state_++); }
    // Returns 0 for 0, otherwise a number less than `end`.
    std::uint32_t below(std::uint64_t end) { return end == 0 ? 0 : static_cast<std::uint32_t>(word() % end); }
    std::uint32_t between(std::uint32_t first, std::uint32_t last) {
        return first + below(std::uint64_t{last} - first + 1);
    }
    bool one_in(std::uint32_t chances) { return below(chances) == 0; }
    // Returns small numbers more often than large ones.
    std::uint32_t small(std::uint32_t last) { return below(std::uint64_t{below(std::uint64_t{last} + 1)} + 1); }
    template <class Value>
    const Value& pick(const std::vector<Value>& values) {
        return values[below(values.size())];
    }

  private:
    std::uint64_t state_;
};

}  // namespace kvfix::world
