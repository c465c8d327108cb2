#include "watch/kernels.h"

#include <algorithm>
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

std::shared_ptr<const Kernels::Layout> Kernels::layout(cuda::Handle function) {
    const std::lock_guard held(mutex_);
    std::shared_ptr<const Layout>& known = layouts_[function];
    if (known != nullptr) {
        return known;
    }
    auto words = std::make_shared<Layout>();
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
            words->push_back({static_cast<std::uint16_t>(param), static_cast<std::uint16_t>(first),
                              static_cast<std::uint16_t>((bytes - first) / kWord)});
        }
    }
    known = words;
    return known;
}

std::vector<std::uintptr_t> Kernels::pinned(cuda::Handle function, void* const* params, void* const* extra,
                                            const Ranges& ranges) {
    std::vector<std::uintptr_t> found;
    if (params != nullptr && driver_.reads_kernels()) {
        for (const Words& words : *layout(function)) {
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
}

}  // namespace kvfix::watch
