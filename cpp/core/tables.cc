#include "core/tables.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix::tables {
namespace {

void require(bool ok, const std::string& why) {
    if (!ok) {
        throw std::invalid_argument("copy_batch_block_offsets: " + why);
    }
}

void check_table(const State& state, const OffsetTable& output, std::size_t rows, std::size_t row_begin,
                 std::uint32_t beam_width) {
    require(output.windows == state.windows.size(), "output has " + std::to_string(output.windows) +
                                                        " pools; this manager has " +
                                                        std::to_string(state.windows.size()) + " windows");
    require(beam_width >= 1, "beam_width is 0");
    require(row_begin <= output.rows && rows <= (output.rows - row_begin) / beam_width,
            std::to_string(rows) + " requests of " + std::to_string(beam_width) + " beams from row " +
                std::to_string(row_begin) + " do not fit " + std::to_string(output.rows) + " rows");
}

void check_scale(const State& state, OffsetScale scale) {
    for (const Window& window : state.windows) {
        const std::int64_t largest = std::int64_t{window.blocks.slots(kPrimary)} * scale.scale + scale.v_offset;
        require(scale.scale > 0 && scale.v_offset >= 0 && largest <= std::numeric_limits<std::int32_t>::max(),
                "scale " + std::to_string(scale.scale) + " and v_offset " + std::to_string(scale.v_offset) +
                    " take slot " + std::to_string(window.blocks.slots(kPrimary) - 1) +
                    " out of int32, or are negative");
    }
}

void check_fits_row(const Sequence& sequence, std::uint32_t beam_width, const OffsetTable& output) {
    const std::string who = "request " + std::to_string(sequence.id()) + " has ";
    require(beam_width <= sequence.beam_width(),
            who + std::to_string(sequence.beam_width()) + " beams, not " + std::to_string(beam_width));
    const std::size_t blocks = sequence.windows.front().size();
    require(blocks <= output.blocks,
            who + std::to_string(blocks) + " blocks; a row of output has " + std::to_string(output.blocks));
}

// Writes one beam's row: the K half, then the V half.
void write_row(const Window& window, const HeldBlocks& held, std::uint32_t beam, std::span<std::int32_t> row,
               OffsetScale scale) {
    const std::span<std::int32_t> k = row.first(row.size() / 2);
    const std::span<std::int32_t> v = row.subspan(row.size() / 2);
    for (std::size_t position = 0; position < held.size(); ++position) {
        const BlockIndex block = held.at(beam, position);
        const bool left = block == kNone;
        k[position] = left ? -1 : static_cast<std::int32_t>(number(window.blocks[block].slot[kPrimary])) * scale.scale;
        v[position] = left ? -1 : k[position] + scale.v_offset;
    }
}

}  // namespace

std::vector<BlockIdTable> block_ids(const State& state, std::span<const RequestId> ids, WindowSize window_size) {
    const Window& window = window_of(state, window_size);
    std::vector<BlockIdTable> out;
    out.reserve(ids.size());
    for (const RequestId id : ids) {
        const Sequence& sequence = state.sequences.at(id);
        const HeldBlocks& held = sequence.windows[window.index];
        BlockIdTable table(sequence.beam_width());
        for (std::uint32_t beam = 0; beam < table.size(); ++beam) {
            for (std::size_t position = 0; position < held.size(); ++position) {
                const BlockIndex block = held.at(beam, position);
                table[beam].push_back(block == kNone ? -1 : static_cast<std::int64_t>(number(id_of(window, block))));
            }
        }
        out.push_back(std::move(table));
    }
    return out;
}

void copy_offsets(const State& state, const OffsetTable& output, std::span<const RequestId> ids,
                  std::uint32_t beam_width, std::size_t row_begin, OffsetScale scale) {
    check_table(state, output, ids.size(), row_begin, beam_width);
    check_scale(state, scale);
    for (const RequestId id : ids) {
        check_fits_row(state.sequences.at(id), beam_width, output);
    }
    const std::size_t width = 2 * output.blocks;
    for (const Window& window : state.windows) {
        std::size_t row = window.index * output.rows + row_begin;
        for (const RequestId id : ids) {
            const HeldBlocks& held = state.sequences.at(id).windows[window.index];
            for (std::uint32_t beam = 0; beam < beam_width; ++beam, ++row) {
                write_row(window, held, beam, {output.data + row * width, width}, scale);
            }
        }
    }
}

}  // namespace kvfix::tables
