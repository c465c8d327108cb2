// Which row of the host's table belongs to a sequence.
#pragma once

#include <map>
#include <set>

#include "types.h"

namespace bound {

class IndexMapper {
  public:
    IndexMapper(int max_batch_size, int max_beam_width);

    int add(RequestId id);
    int get(RequestId id) const;
    void remove(RequestId id);
    int size() const { return int(slots_.size()); }
    int num_free() const { return int(free_.size()); }
    int beam_width() const { return max_beam_width_; }
    int capacity() const { return max_batch_size_ * max_beam_width_; }

    // The rows of the contexts come first, one each, then one row for each beam of the others.
    std::vector<std::int32_t> rows(const std::vector<RequestId>& ids, int num_contexts, int beam_width) const;

  private:
    int max_batch_size_;
    int max_beam_width_;
    std::map<RequestId, int> slots_;
    // Ordered, so the lowest slot goes first, and a slot that was freed is in use again at once.
    std::set<int> free_;
};

// The arguments of a launch. The addresses are read when it runs, not when it is made.
struct Launch {
    const std::int32_t* input = nullptr;
    std::int32_t* output = nullptr;
    const std::int32_t* copy_index = nullptr;
    // S has no scales: it copies rows as they are, with the second plane where copy_v is set.
    const std::int32_t* scales = nullptr;
    const std::int32_t* v_offset = nullptr;
    bool copy_v = true;
    std::size_t pools = 0;
    std::size_t input_rows = 0;
    std::size_t output_rows = 0;
    std::size_t count = 0;
    std::size_t blocks = 0;
    std::size_t output_blocks = 0;

    void run() const;
};

}  // namespace bound
