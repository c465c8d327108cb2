#include "watch/kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvfix::watch {
namespace {

constexpr std::size_t kWord = sizeof(std::uintptr_t);
constexpr std::size_t kParamsMax = 1024;

void collect(const void* from, std::size_t words, const Ranges& ranges, std::vector<std::uintptr_t>& found) {
    for (std::size_t at = 0; at < words; ++at) {
        std::uintptr_t word;
        std::memcpy(&word, static_cast<const char*>(from) + at * kWord, sizeof word);
        if (ranges.near(word) && !ranges.find(word).empty() &&
            std::find(found.begin(), found.end(), word) == found.end()) {
            found.push_back(word);
        }
    }
}

}  // namespace

const Kernels::Layout& Kernels::layout(cuda::Handle function) {
    // What this thread launched last costs no lock.
    struct Recent {
        cuda::Handle function;
        const Layout* layout;
        std::uint32_t generation;
    };
    static thread_local std::array<Recent, 64> recents{};
    Recent& recent = recents[(reinterpret_cast<std::uintptr_t>(function) >> 4) % recents.size()];
    const std::uint32_t generation = generation_.load(std::memory_order_acquire);
    if (recent.function == function && recent.generation == generation) {
        return *recent.layout;
    }
    const std::lock_guard held(mutex_);
    const Layout*& known = layouts_[function];
    if (known == nullptr) {
        known = &*distinct_.insert(read(function)).first;
    }
    recent = {function, known, generation};
    return *known;
}

Kernels::Layout Kernels::read(cuda::Handle function) const {
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

std::vector<std::uintptr_t> Kernels::pinned(cuda::Handle function, void* const* params, void* const* extra,
                                            const Ranges& ranges) {
    std::vector<std::uintptr_t> found;
    if (params != nullptr && driver_.reads_kernels()) {
        for (const Words& words : layout(function)) {
            collect(static_cast<const char*>(params[words.param]) + words.first, words.count, ranges, found);
        }
    } else if (extra != nullptr) {
        const void* buffer = nullptr;
        std::size_t bytes = 0;
        for (; reinterpret_cast<std::uintptr_t>(extra[0]) != 0; extra += 2) {
            if (reinterpret_cast<std::uintptr_t>(extra[0]) == cuda::kParamBuffer) {
                buffer = extra[1];
            } else if (reinterpret_cast<std::uintptr_t>(extra[0]) == cuda::kParamSize) {
                bytes = *static_cast<const std::size_t*>(extra[1]);
            }
        }
        if (buffer != nullptr) {
            collect(buffer, bytes / kWord, ranges, found);
        }
    }
    return found;
}

void Kernels::forget() {
    const std::lock_guard held(mutex_);
    layouts_.clear();
    generation_.fetch_add(1, std::memory_order_release);
}

}  // namespace kvfix::watch
