#include "core/match_book.h"

namespace kvfix {

bool MatchBook::find(const Window& window, const RequestPtr& request, Found& out) const {
    if (changes_ != window.tree.changes() || !is_settled(window)) {
        return false;
    }
    const auto at = entries_.find(request.get());
    if (at == entries_.end() || at->second.request.expired()) {
        return false;
    }
    out = {path_of(at->second), at->second.run};
    return true;
}

void MatchBook::note(const Window& window, const RequestPtr& request, const Found& found) {
    if (!is_settled(window)) {
        return;
    }
    if (changes_ != window.tree.changes()) {
        changes_ = window.tree.changes();
        entries_.clear();
        paths_.clear();
    }
    if (entries_.size() == kRequestsMost || found.path.size() > kBlocksMost - paths_.size()) {
        return;
    }
    entries_.insert_or_assign(request.get(), Entry{.request = request,
                                                   .path_begin = static_cast<std::uint32_t>(paths_.size()),
                                                   .path_length = static_cast<std::uint32_t>(found.path.size()),
                                                   .run = found.run});
    paths_.insert(paths_.end(), found.path.begin(), found.path.end());
}

}  // namespace kvfix
