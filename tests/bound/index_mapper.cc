#include "index_mapper.h"

#include <algorithm>

namespace bound {

IndexMapper::IndexMapper(int max_batch_size, int max_beam_width)
    : max_batch_size_(max_batch_size), max_beam_width_(max_beam_width) {
    check(max_batch_size > 0 && max_beam_width > 0, "an index mapper needs slots and beams");
    for (int slot = 0; slot < max_batch_size; ++slot) free_.insert(slot);
}

int IndexMapper::add(RequestId id) {
    check(slots_.count(id) == 0, "sequence " + std::to_string(id) + " has a slot already");
    check(!free_.empty(), "no free index slots");
    const int slot = *free_.begin();
    free_.erase(free_.begin());
    slots_[id] = slot;
    return slot;
}

int IndexMapper::get(RequestId id) const {
    const auto found = slots_.find(id);
    check(found != slots_.end(), "sequence " + std::to_string(id) + " has no slot");
    return found->second;
}

void IndexMapper::remove(RequestId id) {
    free_.insert(get(id));
    slots_.erase(id);
}

std::vector<std::int32_t> IndexMapper::rows(const std::vector<RequestId>& ids, int num_contexts, int beam_width) const {
    check(beam_width >= 1 && beam_width <= max_beam_width_, "too many beams");
    std::vector<std::int32_t> answer;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const int beams = int(i) < num_contexts ? 1 : beam_width;
        for (int beam = 0; beam < beams; ++beam) answer.push_back(get(ids[i]) * max_beam_width_ + beam);
    }
    check(int(answer.size()) <= capacity(), "more rows than the copy index has");
    return answer;
}

void Launch::run() const {
    const std::size_t width = std::min(blocks, output_blocks);
    for (std::size_t pool = 0; pool < pools; ++pool) {
        for (std::size_t i = 0; i < count; ++i) {
            const auto row = std::size_t(copy_index[i]);
            check(row < input_rows, "the copy index names a row that is not there");
            const std::int32_t* from = input + (pool * input_rows + row) * 2 * blocks;
            std::int32_t* to = output + (pool * output_rows + i) * 2 * output_blocks;
            for (std::size_t block = 0; block < width; ++block) {
                if (scales == nullptr) {
                    to[block] = from[block];
                    if (copy_v) to[output_blocks + block] = from[blocks + block];
                    continue;
                }
                const std::int32_t page = from[block];
                to[block] = page < 0 ? 0 : page * scales[pool];
                to[output_blocks + block] = page < 0 ? 0 : page * scales[pool] + v_offset[pool];
            }
        }
    }
}

}  // namespace bound
