// Which words of a kernel's parameters may be addresses: the layout of each function's parameters, asked for once.
#pragma once

#include <atomic>
#include <compare>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "watch/driver.h"
#include "watch/ranges.h"

namespace kvfix::watch {

class Kernels {
  public:
    explicit Kernels(const Driver& driver) : driver_(driver) {}

    // Pinned addresses among the parameters of a launch, structs included.
    std::vector<std::uintptr_t> pinned(cuda::Handle function, void* const* params, void* const* extra,
                                       const Ranges& ranges);
    // Handles of what was unloaded may come again for something else.
    void forget();

  private:
    struct Words {
        std::uint16_t param;
        std::uint16_t first;  // in bytes into the parameter
        std::uint16_t count;
        auto operator<=>(const Words&) const = default;
    };
    using Layout = std::vector<Words>;

    const Layout& layout(cuda::Handle function);
    Layout read(cuda::Handle function) const;

    const Driver& driver_;
    std::mutex mutex_;
    // Functions share what is the same. It is never freed: a launch may still read what another thread forgets.
    std::set<Layout> distinct_;
    std::unordered_map<cuda::Handle, const Layout*> layouts_;
    std::atomic<std::uint32_t> generation_{1};
};

}  // namespace kvfix::watch
