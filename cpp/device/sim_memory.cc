#include "device/sim_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>

#include "device/device.h"

namespace kvfix {
namespace {

constexpr std::align_val_t kAlignment{256};  // as on a GPU

std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

void require_size(const char* what, std::size_t bytes) {
    if (bytes == 0) {
        throw DeviceError(std::string(what) + " of 0 bytes: a device refuses an empty range");
    }
}

}  // namespace

std::string hex(std::uintptr_t address) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    do {
        text.insert(text.begin(), kDigits[address % 16]);
        address /= 16;
    } while (address != 0);
    return "0x" + text;
}

std::size_t checked_bytes(std::initializer_list<std::uint64_t> factors) {
    std::size_t product = 1;
    for (const std::uint64_t factor : factors) {
        if (__builtin_mul_overflow(product, factor, &product)) {
            throw DeviceError("a range of more bytes than there are addresses; a size or a pitch is wrong");
        }
    }
    return product;
}

SimMemory::~SimMemory() {
    for (const auto& [address, range] : ranges_) {
        free_range(address, range);
    }
}

std::uintptr_t SimMemory::allocate(std::size_t bytes) {
    require_size("device memory", bytes);
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr) {
        throw DeviceError("device memory of " + std::to_string(bytes) + " bytes: the host heap cannot give that much");
    }
    std::memset(memory, kUnwritten, bytes);
    add(address_of(memory), {bytes, Kind::device});
    return address_of(memory);
}

void SimMemory::release(std::uintptr_t address) { take(address, Kind::device, nullptr); }

void* SimMemory::map(std::size_t bytes) {
    require_size("pinned memory", bytes);
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw DeviceError("pinned memory of " + std::to_string(bytes) + " bytes: mmap: " + std::strerror(errno));
    }
    add(address_of(memory), {bytes, Kind::mapped});
    return memory;
}

void SimMemory::unmap(void* memory, std::size_t bytes) { take(address_of(memory), Kind::mapped, &bytes); }

void SimMemory::register_host(void* memory, std::size_t bytes) {
    require_size("registered memory", bytes);
    add(address_of(memory), {bytes, Kind::registered});
}

void SimMemory::unregister_host(void* memory) { take(address_of(memory), Kind::registered, nullptr); }

const char* SimMemory::name_of(Kind kind) {
    switch (kind) {
        case Kind::device:
            return "device";
        case Kind::mapped:
            return "mapped";
        case Kind::registered:
            return "registered";
    }
    return "unknown";
}

void SimMemory::free_range(std::uintptr_t address, const Range& range) {
    if (range.kind == Kind::device) {
        ::operator delete(reinterpret_cast<void*>(address), kAlignment);
    } else if (range.kind == Kind::mapped) {
        ::munmap(reinterpret_cast<void*>(address), range.bytes);  // registered memory belongs to its caller
    }
}

// The range that begins last at or before the address; end() if none does.
SimMemory::Ranges::const_iterator SimMemory::range_around(std::uintptr_t address) const {
    const auto after = ranges_.upper_bound(address);
    return after == ranges_.begin() ? ranges_.end() : std::prev(after);
}

// Takes ownership of mapped and device memory, even if it throws.
void SimMemory::add(std::uintptr_t address, Range range) {
    const std::lock_guard guard(mutex_);
    const auto fail = [&](const std::string& why) {
        free_range(address, range);
        throw DeviceError(std::string(name_of(range.kind)) + " memory at " + hex(address) + ", " +
                          std::to_string(range.bytes) + " bytes: " + why);
    };
    if (address == 0 || range.bytes > std::numeric_limits<std::uintptr_t>::max() - address) {
        fail("not a range of addresses");
    }
    // Disjoint ranges: only the last one that begins before our end can overlap.
    const auto last = range_around(address + range.bytes - 1);
    if (last != ranges_.end() && last->first + last->second.bytes > address) {
        fail("overlaps " + std::string(name_of(last->second.kind)) + " memory at " + hex(last->first) + ", " +
             std::to_string(last->second.bytes) + " bytes; registered twice, or freed without unregister_host?");
    }
    ranges_.emplace(address, range);
}

void SimMemory::take(std::uintptr_t address, Kind kind, const std::size_t* bytes) {
    const std::lock_guard guard(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.kind != kind) {
        throw DeviceError("no " + std::string(name_of(kind)) + " memory begins at " + hex(address) +
                          ": already given back, or never given out?");
    }
    if (bytes != nullptr && *bytes != found->second.bytes) {
        throw DeviceError(std::string(name_of(kind)) + " memory at " + hex(address) + " has " +
                          std::to_string(found->second.bytes) + " bytes, to be given back are " +
                          std::to_string(*bytes));
    }
    const Range range = found->second;
    ranges_.erase(found);
    free_range(address, range);
}

void SimMemory::Access::require(std::uintptr_t address, std::size_t bytes, const char* what) const {
    if (bytes == 0) {
        return;
    }
    const std::string head = std::string(what) + ": " + std::to_string(bytes) + " bytes at " + hex(address);
    const auto found = memory_.range_around(address);
    const std::size_t offset = found == memory_.ranges_.end() ? 0 : address - found->first;
    if (found == memory_.ranges_.end() || offset >= found->second.bytes) {
        throw DeviceError(head + " are neither device memory nor mapped nor registered; given back too early?");
    }
    if (bytes > found->second.bytes - offset) {
        throw DeviceError(head + " reach beyond the end of " + name_of(found->second.kind) + " memory at " +
                          hex(found->first) + ", " + std::to_string(found->second.bytes) + " bytes");
    }
}

void SimMemory::Access::require_pinned(std::uintptr_t address) const {
    const auto found = memory_.range_around(address);
    if (found == memory_.ranges_.end() || address - found->first >= found->second.bytes ||
        found->second.kind == Kind::device) {
        throw DeviceError(hex(address) + " is not in pinned memory: neither mapped nor registered with this device");
    }
}

}  // namespace kvfix
