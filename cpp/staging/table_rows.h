// Reading the rows of a batch out of a live table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "staging/copy_past_caches.h"
#include "staging/offset_shipment.h"

namespace kvfix {

// Calls `copy_row(line, pool, row)` for the rows of the batch, pool after pool, and has the memory of the next row come
// meanwhile. What it copies past the caches has been copied when this returns.
template <class CopyRow>
void for_each_row(const HostTable& table, std::span<const std::uint32_t> rows, std::size_t row_bytes,
                  const CopyRow& copy_row) {
    std::size_t line = 0;
    for (std::uint32_t pool = 0; pool < table.pools; ++pool) {
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (i + 1 < rows.size()) {
                fetch_ahead(table.row(pool, rows[i + 1], 0), row_bytes);
            }
            copy_row(line++, pool, rows[i]);
        }
    }
    end_copies_past_caches();
}

// Copies the first planes of these rows into the first rows of `to`, which the caller may write. Throws
// std::invalid_argument, with nothing copied, if they do not fit.
void copy_pages(const HostTable& from, std::span<const std::uint32_t> rows, const HostTable& to);

}  // namespace kvfix
