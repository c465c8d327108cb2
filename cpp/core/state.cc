#include "core/state.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix {

const Window& window_of(const State& state, WindowSize window_size) {
    if (!window_size && state.windows.size() == 1) {
        return state.windows[0];
    }
    std::string sizes;
    for (const Window& window : state.windows) {
        const WindowSize size = window.config.window_size;
        if (window_size && size == window_size) {
            return window;
        }
        sizes += (sizes.empty() ? "" : ", ") + (size ? std::to_string(*size) : std::string("None"));
    }
    throw std::invalid_argument("window_size is " + (window_size ? std::to_string(*window_size) : std::string("None")) +
                                "; this manager has " + sizes);
}

Window& window_of(State& state, WindowSize window_size) {
    return state.windows[window_of(std::as_const(state), window_size).index];
}

BlockPlace place_of(State& state, BlockId public_id) {
    const std::uint64_t id = number(public_id);
    for (Window& window : state.windows) {
        if (id >= window.block_id_base && id - window.block_id_base < window.blocks.size()) {
            const auto block = static_cast<BlockIndex>(id - window.block_id_base);
            if (window.blocks[block].has(kPrimary) || window.blocks[block].has(kHost)) {
                return {&window, block};
            }
        }
    }
    throw std::invalid_argument("block " + std::to_string(id) +
                                " holds nothing: evicted or freed since, or never a block id");
}

}  // namespace kvfix
