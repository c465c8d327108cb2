#include "staging/table_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvfix {

void copy_pages(const HostTable& from, std::span<const std::uint32_t> rows, const HostTable& to) {
    if (to.pools != from.pools || to.blocks != from.blocks || to.rows < rows.size()) {
        throw std::invalid_argument("copy_pages: " + std::to_string(rows.size()) + " rows of a table of " +
                                    std::to_string(from.pools) + " pools and " + std::to_string(from.blocks) +
                                    " blocks do not fit one of " + std::to_string(to.pools) + " pools, " +
                                    std::to_string(to.rows) + " rows and " + std::to_string(to.blocks) + " blocks");
    }
    if (const auto beyond = std::ranges::find_if(rows, [&](std::uint32_t row) { return row >= from.rows; });
        beyond != rows.end()) {
        throw std::invalid_argument("copy_pages: row " + std::to_string(*beyond) + " is out of a table of " +
                                    std::to_string(from.rows) + " rows");
    }
    const std::size_t row_bytes = std::size_t{from.blocks} * sizeof(std::int32_t);
    for_each_row(from, rows, row_bytes, [&](std::size_t line, std::uint32_t pool, std::uint32_t row) {
        const auto own_row = static_cast<std::uint32_t>(line % rows.size());
        copy_past_caches(const_cast<std::int32_t*>(to.row(pool, own_row, 0)), from.row(pool, row, 0), row_bytes);
    });
}

}  // namespace kvfix
