// The way from one live table to one destination. It looks up once what all shipments between them share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "staging/offset_stager.h"

namespace kvfix {

// The maker ensures that both ends stay where they are for as long as the route is used.
class OffsetRoute {
  public:
    OffsetRoute(OffsetStager& stager, OffsetDestination dst, std::uint32_t dst_rows, const HostTable& table)
        : stager_(stager), dst_(dst), dst_rows_(dst_rows), table_(table), every_row_(table.rows) {
        std::iota(every_row_.begin(), every_row_.end(), 0U);
    }

    struct Manner {
        std::uint32_t width;
        StreamHandle stream;
        bool lent = false;
    };
    void ship(std::span<const std::uint32_t> rows, const Manner& manner) const {
        stager_.ship({.dst = dst_,
                      .table = table_,
                      .rows = rows,
                      .width = manner.width,
                      .stream = manner.stream,
                      .lent = manner.lent},
                     dst_rows_);
    }
    // Ships the first rows of the table to the same places.
    void ship_first(std::size_t rows, const Manner& manner) const {
        if (rows > every_row_.size()) {
            throw std::invalid_argument("OffsetStager: " + std::to_string(rows) + " rows of a table of " +
                                        std::to_string(every_row_.size()));
        }
        ship(std::span(every_row_).first(rows), manner);
    }
    std::uint32_t width_max() const { return std::min(table_.blocks, dst_.blocks); }
    const HostTable& table() const { return table_; }
    std::uint32_t dst_rows() const { return dst_rows_; }

  private:
    OffsetStager& stager_;
    const OffsetDestination dst_;
    const std::uint32_t dst_rows_;
    const HostTable table_;
    std::vector<std::uint32_t> every_row_;
};

}  // namespace kvfix
