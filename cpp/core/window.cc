#include "core/window.h"

namespace kvfix {

Windows::Windows(const BlockManagerConfig& manager) {
    std::uint64_t block_id_base = 0;
    for (std::uint32_t index = 0; index < manager.windows.size(); ++index) {
        owned_.push_back(std::make_unique<Window>(manager, index, block_id_base));
        block_id_base += owned_.back()->blocks.size();
    }
}

}  // namespace kvfix
