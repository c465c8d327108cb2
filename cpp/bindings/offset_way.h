// The way from a live table to the tensor that attention reads, as Python holds both. Looked up once: every later call
// asks whether it still has the same objects, and whether these are still at their places.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "staging/offset_stager.h"

namespace kvfix::bindings {

// An object that somebody else owns, known again by its identity. It may be dropped at any time, and another may get
// its address: hence the weak reference.
class SeenObject {
  public:
    explicit SeenObject(nanobind::handle object);
    bool is(nanobind::handle object) const;
    // The object itself, or None if it is gone.
    nanobind::object object() const;

  private:
    PyObject* address_;
    nanobind::object reference_;
};

// The memory of a tensor, or of an array of ours. Throws TypeError or ValueError unless it is int32 (pools, rows, 2,
// blocks) on the device, rows contiguous.
struct DeviceTable {
    DeviceTable(nanobind::handle dst, const Device& device);

    OffsetDestination destination;
    std::uint32_t pools = 0, rows = 0;
    bool may_move = false;  // it is a tensor, whose memory may be replaced

  private:
    void read_array(nanobind::handle array);
    void read_tensor(nanobind::handle tensor, const Device& device);
};

class OffsetWay {
  public:
    OffsetWay(nanobind::handle dst, nanobind::handle table, const Device& device);

    bool leads(nanobind::handle dst, nanobind::handle table) const;
    // Ships without the GIL.
    void ship(OffsetStager& stager, std::span<const std::uint32_t> rows, StreamHandle stream,
              std::optional<std::uint32_t> width = std::nullopt, bool lent = false) const;
    const HostTable& table() const { return table_; }
    const DeviceTable& destination() const { return dst_; }
    std::uintptr_t table_address() const { return reinterpret_cast<std::uintptr_t>(table_.data); }
    std::uint32_t width_max() const;

  private:
    SeenObject dst_object_, table_object_;
    DeviceTable dst_;
    HostTable table_;
    bool table_may_move_;
};

// The way that shipments took last.
class LastWay {
  public:
    std::shared_ptr<const OffsetWay> between(nanobind::handle dst, nanobind::handle table, const Device& device);

  private:
    nanobind::ft_mutex mutex_;              // where there is no GIL
    std::shared_ptr<const OffsetWay> way_;  // guarded by either
};

// The row numbers of a batch: how many from the first on, a range, numbers, or a tensor of them. They stay valid until
// the same thread reads others.
std::span<const std::uint32_t> read_rows(nanobind::handle rows, const OffsetStager& stager);

// Copies the first planes of these rows of a table into the first rows of `own`, a tensor or array of the caller's.
void copy_pages(nanobind::handle table, nanobind::handle rows, nanobind::handle own);

}  // namespace kvfix::bindings
