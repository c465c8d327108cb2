// What a shipment makes the device table look at: every plane in use of every row of the batch, each once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "staging/offset_shipment.h"

namespace kvfix {

struct TableLine {
    const std::int32_t* live = nullptr;
    std::uint32_t index = 0;  // of its first entry, in the device table and in the shadow
};

class TableLines {
  public:
    explicit TableLines(const StagerConfig& config)
        : rows_max_(config.rows_max),
          planes_(planes_of(config.layout)),
          blocks_max_(config.blocks_max),
          listed_(config.rows_max) {
        rows_.reserve(rows_max_);  // nothing may be thrown while rows are listed
        lines_.reserve(std::size_t{config.num_pools} * rows_max_ * planes_);
    }

    // A row that the batch names twice stands here once: two workers must not meet at its shadow. Good until the next call.
    std::span<const TableLine> of(const Shipment& shipment) {
        list_rows(shipment.rows);
        lines_.clear();
        for (std::uint32_t pool = 0; pool < shipment.table.pools; ++pool) {
            for (const std::uint32_t row : rows_) {
                for (std::uint32_t plane = 0; plane < planes_; ++plane) {
                    const std::size_t number = (std::size_t{pool} * rows_max_ + row) * planes_ + plane;
                    lines_.push_back(
                        {shipment.table.row(pool, row, plane), static_cast<std::uint32_t>(number * blocks_max_)});
                }
            }
        }
        return lines_;
    }

  private:
    void list_rows(std::span<const std::uint32_t> rows) {
        rows_.clear();
        for (const std::uint32_t row : rows) {
            if (!listed_[row]) {
                listed_[row] = true;
                rows_.push_back(row);
            }
        }
        for (const std::uint32_t row : rows_) {
            listed_[row] = false;
        }
    }

    std::uint32_t rows_max_;
    std::uint32_t planes_;
    std::size_t blocks_max_;
    std::vector<bool> listed_;  // by row; false between calls
    std::vector<std::uint32_t> rows_;
    std::vector<TableLine> lines_;
};

}  // namespace kvfix
