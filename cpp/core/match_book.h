// Results of walks of one tree, for as long as the tree stays as it is. A scheduler asks about a request, asks again,
// and admits it. Only the first of these has to hash the prompt, look it up and compare it.
//
// A walk depends on the request, which never changes, on the tree, and on which blocks are usable. While nothing is in
// flight, all blocks of a tree are usable. So a result found then holds whenever nothing is in flight again, until a
// block enters or leaves the tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/admission_plan.h"
#include "core/request.h"
#include "core/window.h"

namespace kvfix {

class MatchBook {
  public:
    struct Found {
        std::span<const BlockIndex> path;  // valid until the next call of note()
        Run run;
    };

    // Returns false if the request is unknown, or if it may find something else by now.
    bool find(const Window& window, const RequestPtr& request, Found& out) const;
    // Notes what the request has just found, unless the result would not stay true or the book is full.
    void note(const Window& window, const RequestPtr& request, const Found& found);
    // Calls visit(request, found) for every result that find() would return, if the request still exists.
    template <class Visit>
    void for_each(const Window& window, Visit&& visit) const {
        for (const auto& [key, entry] : entries_) {
            const RequestPtr request = entry.request.lock();
            if (Found found; request != nullptr && find(window, request, found)) {
                visit(request, std::as_const(found));
            }
        }
    }

  private:
    static constexpr std::size_t kRequestsMost = 1024;
    static constexpr std::size_t kBlocksMost = std::size_t{1} << 18;  // 1 MiB

    struct Entry {
        std::weak_ptr<const Request> request;  // the address alone may belong to another request by now
        std::uint32_t path_begin;
        std::uint32_t path_length;
        Run run;
    };

    // Whether all blocks of the tree are usable.
    static bool is_settled(const Window& window) {
        return window.in_flight[kPrimary] == 0 && window.in_flight[kHost] == 0;
    }

    std::span<const BlockIndex> path_of(const Entry& entry) const {
        return std::span(paths_).subspan(entry.path_begin, entry.path_length);
    }

    std::uint64_t changes_ = 0;  // the tree's count when all of this was found
    std::unordered_map<const Request*, Entry> entries_;
    std::vector<BlockIndex> paths_;
};

}  // namespace kvfix
