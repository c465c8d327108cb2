// OffsetStager as Python has it.
#pragma once

#include <optional>

#include "bindings/offset_way.h"
#include "bindings/ungilled.h"

namespace kvfix::bindings {

class StagerObject : public Ungilled<OffsetStager> {
  public:
    using Ungilled::Ungilled;

    void ship(nanobind::handle dst, nanobind::handle table, nanobind::handle rows, std::uintptr_t stream,
              std::optional<std::uint32_t> width, bool lent) {
        const auto way = way_.between(dst, table, device());
        way->ship(*this, read_rows(rows, *this), {stream}, width, lent);
    }

  private:
    LastWay way_;
};

}  // namespace kvfix::bindings
