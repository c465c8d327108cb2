#include "core/match_book.h"

namespace kvfix {

bool MatchBook::find(const Window& window, const RequestPtr& request, Found& out) const {
    if (!is_current(window)) {
        return false;
    }
    const auto at = entries_.find(request.get());
    if (at == entries_.end() || at->second.request.expired()) {
        return false;
    }
    out = {path_of(at->second), at->second.run};
    return true;
}

std::span<const BlockIndex> MatchBook::latest_path(const Window& window) const {
    return is_current(window) ? std::span(paths_).subspan(latest_begin_) : std::span<const BlockIndex>();
}

void MatchBook::note(const Window& window, const RequestPtr& request, const Found& found) {
    if (!is_settled(window)) {
        return;
    }
    if (changes_ != window.tree.changes()) {
        changes_ = window.tree.changes();
        entries_.clear();
        paths_.clear();
        latest_begin_ = 0;
    }
    if (entries_.size() == kRequestsMost || found.path.size() > kBlocksMost - paths_.size()) {
        return;
    }
    latest_begin_ = static_cast<std::uint32_t>(paths_.size());
    entries_.insert_or_assign(request.get(), Entry{.request = request,
                                                   .path_begin = latest_begin_,
                                                   .path_length = static_cast<std::uint32_t>(found.path.size()),
                                                   .run = found.run});
    paths_.insert(paths_.end(), found.path.begin(), found.path.end());
}

}  // namespace kvfix
