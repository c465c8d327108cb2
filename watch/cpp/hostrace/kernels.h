// Which words of a kernel's parameters may be addresses: the layout of each function's parameters, asked for once.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "hostrace/driver.h"
#include "hostrace/ranges.h"

namespace hostrace {

class Kernels {
  public:
    explicit Kernels(const Driver& driver) : driver_(driver) { has_key_ = pthread_key_create(&key_, std::free) == 0; }
    ~Kernels() {
        if (has_key_) {
            pthread_key_delete(key_);
        }
    }
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;

    // Pinned addresses among the parameters of a launch, structs included.
    std::vector<std::uintptr_t> pinned(cuda::Handle function, void* const* params, void* const* extra,
                                       const Ranges& ranges) {
        std::vector<std::uintptr_t> found;
        const auto collect = [&](const void* from, std::size_t words) {
            for (std::size_t at = 0; at < words; ++at) {
                std::uintptr_t word;
                std::memcpy(&word, static_cast<const char*>(from) + at * kWord, sizeof word);
                if (ranges.near(word) && !ranges.find(word).empty() &&
                    std::find(found.begin(), found.end(), word) == found.end()) {
                    found.push_back(word);
                }
            }
        };
        if (params != nullptr && driver_.function_param != nullptr) {
            for (const Words& words : layout(function)) {
                collect(static_cast<const char*>(params[words.param]) + words.first, words.count);
            }
        } else if (extra != nullptr) {
            const void* buffer = nullptr;
            std::size_t bytes = 0;
            for (; *extra != nullptr; extra += 2) {
                const auto what = reinterpret_cast<std::uintptr_t>(extra[0]);
                buffer = what == cuda::kParamBuffer ? extra[1] : buffer;
                bytes = what == cuda::kParamSize ? *static_cast<const std::size_t*>(extra[1]) : bytes;
            }
            collect(buffer, buffer == nullptr ? 0 : bytes / kWord);
        }
        return found;
    }

    // Handles of what was unloaded may come again for something else.
    void forget() {
        const std::lock_guard held(mutex_);
        layouts_.clear();
        generation_.fetch_add(1, std::memory_order_release);
    }

  private:
    static constexpr std::size_t kWord = sizeof(std::uintptr_t);
    static constexpr std::size_t kParamsMax = 1024;
    struct Words {
        std::uint16_t param;
        std::uint16_t first;  // in bytes into the parameter
        std::uint16_t count;
        auto operator<=>(const Words&) const = default;
    };
    using Layout = std::vector<Words>;
    struct Recent {
        cuda::Handle function;
        const Layout* layout;
        std::uint32_t generation;
    };
    static constexpr std::size_t kRecents = 64;

    const Layout& layout(cuda::Handle function) {
        Recent* const recent = recent_of(function);
        const std::uint32_t generation = generation_.load(std::memory_order_acquire);
        if (recent != nullptr && recent->function == function && recent->generation == generation) {
            return *recent->layout;
        }
        const std::lock_guard held(mutex_);
        const Layout*& known = layouts_[function];
        if (known == nullptr) {
            known = &*distinct_.insert(read(function)).first;
        }
        if (recent != nullptr) {
            *recent = {function, known, generation};
        }
        return *known;
    }

    // What this thread launched last costs no lock. Static TLS would be nearer, but there is little of it for a library
    // that the driver loads late.
    Recent* recent_of(cuda::Handle function) {
        if (!has_key_) {
            return nullptr;
        }
        auto* recents = static_cast<Recent*>(pthread_getspecific(key_));
        if (recents == nullptr) {
            recents = static_cast<Recent*>(std::calloc(kRecents, sizeof(Recent)));
            if (recents == nullptr || pthread_setspecific(key_, recents) != 0) {
                std::free(recents);
                return nullptr;
            }
        }
        return &recents[(reinterpret_cast<std::uintptr_t>(function) >> 4) % kRecents];
    }

    Layout read(cuda::Handle function) const {
        Layout layout;
        for (std::size_t param = 0; param < kParamsMax; ++param) {
            std::size_t offset = 0;
            std::size_t bytes = 0;
            // A launch takes handles of kernels of libraries where it takes functions.
            if (driver_.function_param(function, param, &offset, &bytes) != cuda::kSuccess &&
                (driver_.kernel_param == nullptr ||
                 driver_.kernel_param(function, param, &offset, &bytes) != cuda::kSuccess)) {
                break;
            }
            const std::size_t first = (kWord - offset % kWord) % kWord;
            if (bytes >= first + kWord) {
                layout.push_back({static_cast<std::uint16_t>(param), static_cast<std::uint16_t>(first),
                                  static_cast<std::uint16_t>((bytes - first) / kWord)});
            }
        }
        return layout;
    }

    const Driver& driver_;
    pthread_key_t key_{};
    bool has_key_ = false;
    std::mutex mutex_;
    // Functions share what is the same. It is never freed: a launch may still read what another thread forgets.
    std::set<Layout> distinct_;
    std::unordered_map<cuda::Handle, const Layout*> layouts_;
    std::atomic<std::uint32_t> generation_{1};
};

}  // namespace hostrace
