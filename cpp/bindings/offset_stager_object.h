// OffsetStager as Python has it.
#pragma once

#include <memory>
#include <optional>

#include "bindings/offset_way.h"
#include "bindings/ungilled.h"

namespace kvfix::bindings {

class StagerObject : public Ungilled<OffsetStager> {
  public:
    using Ungilled::Ungilled;

    void ship(nanobind::handle dst, nanobind::handle table, nanobind::handle rows, std::uintptr_t stream,
              std::optional<std::uint32_t> width, bool lent) {
        std::shared_ptr<const OffsetWay> way = way_;  // another thread may set its own, wherever the GIL is given up
        if (way == nullptr || !way->leads(dst, table)) {
            way_ = way = std::make_shared<const OffsetWay>(dst, table, device());
        }
        way->ship(*this, read_rows(rows, *this), {stream}, width, lent);
    }

  private:
    std::shared_ptr<const OffsetWay> way_;  // of the last shipment; guarded by the GIL
};

}  // namespace kvfix::bindings
