#include "core/state.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "core/steps.h"

namespace kvfix {
namespace {

// The first window, in ascending order, for which `reaches` is true; null if there is none.
template <class Reaches>
const Window* first_window(const Windows& windows, Reaches&& reaches) {
    std::size_t begin = 0;
    for (std::size_t end = windows.size(); begin < end;) {
        KVFIX_STEP();
        const std::size_t middle = begin + (end - begin) / 2;
        if (reaches(windows[middle])) {
            end = middle;
        } else {
            begin = middle + 1;
        }
    }
    return begin < windows.size() ? &windows[begin] : nullptr;
}

}  // namespace

const Window& window_of(const State& state, WindowSize window_size) {
    const Windows& windows = state.windows;
    if (!window_size && windows.size() == 1) {
        return windows[0];
    }
    const Window* found = first_window(windows, [&](const Window& window) { return window.reach() >= window_size; });
    if (window_size && found != nullptr && found->config.window_size == window_size) {
        return *found;
    }
    std::string sizes;
    for (const Window& window : windows) {
        const WindowSize size = window.config.window_size;
        sizes += (sizes.empty() ? "" : ", ") + (size ? std::to_string(*size) : std::string("None"));
    }
    throw std::invalid_argument("window_size is " + (window_size ? std::to_string(*window_size) : std::string("None")) +
                                "; this manager has " + sizes);
}

Window& window_of(State& state, WindowSize window_size) {
    return state.windows[window_of(std::as_const(state), window_size).index];
}

PlaceIn<const Window> place_of(const State& state, BlockId public_id) {
    const std::uint64_t id = number(public_id);
    const Window* window = first_window(state.windows, [&](const Window& each) {
        return id < each.block_id_base + each.blocks.size();  // the windows' ids follow each other
    });
    if (window != nullptr) {
        const auto block = static_cast<BlockIndex>(id - window->block_id_base);
        if (window->blocks[block].has(kPrimary) || window->blocks[block].has(kHost)) {
            return {window, block};
        }
    }
    throw std::invalid_argument("block " + std::to_string(id) +
                                " holds nothing: evicted or freed since, or never a block id");
}

BlockPlace place_of(State& state, BlockId id) {
    const auto [window, block] = place_of(std::as_const(state), id);
    return {&state.windows[window->index], block};
}

}  // namespace kvfix
