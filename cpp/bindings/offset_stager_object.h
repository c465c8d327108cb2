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
        std::shared_ptr<const OffsetWay> way = last_way();
        if (way == nullptr || !way->leads(dst, table)) {
            way = std::make_shared<const OffsetWay>(dst, table, device());
            const nanobind::ft_lock_guard guard(mutex_);
            way_ = way;
        }
        way->ship(*this, read_rows(rows, *this), {stream}, width, lent);
    }

  private:
    std::shared_ptr<const OffsetWay> last_way() {
        const nanobind::ft_lock_guard guard(mutex_);
        return way_;
    }

    nanobind::ft_mutex mutex_;              // where there is no GIL
    std::shared_ptr<const OffsetWay> way_;  // of the last shipment; guarded by either
};

}  // namespace kvfix::bindings
