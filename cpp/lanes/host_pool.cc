#include "lanes/host_pool.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "device/pages.h"
#include "kernels/digest.h"

namespace kvfix {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kPreferNode = 1;  // MPOL_PREFERRED: a node that is full does not kill the process

[[noreturn]] void refuse(const std::string& what, std::size_t bytes) {
    throw DeviceError("host pool: " + what + " of " + std::to_string(bytes) + " bytes: " + std::strerror(errno) +
                      "; usual cause: less memory is left for this process than host_bytes asks for");
}

}  // namespace

HostPoolPlan plan_host_pool(std::size_t host_bytes, std::size_t block_bytes, std::size_t tail_bytes,
                            std::size_t piece_bytes_max, std::size_t page_bytes) {
    const std::size_t slot_bytes = tail_bytes == 0 ? block_bytes : rounded_up(block_bytes + tail_bytes, kCacheLine);
    if (block_bytes == 0 || page_bytes == 0 || host_bytes < slot_bytes) {
        throw std::invalid_argument("host pool: " + std::to_string(host_bytes) + " bytes hold no block of " +
                                    std::to_string(block_bytes) + " bytes and " +
                                    std::to_string(slot_bytes - block_bytes) + " behind it, on pages of " +
                                    std::to_string(page_bytes));
    }
    const std::size_t unit = page_bytes / std::gcd(page_bytes, slot_bytes);  // slots that end on a page
    const std::size_t most = piece_bytes_max / slot_bytes / unit * unit;
    return {.block_bytes = block_bytes,
            .slot_bytes = slot_bytes,
            .slots = host_bytes / slot_bytes,
            .slots_per_piece = std::max(unit, most)};
}

HostPool::HostPool(std::shared_ptr<Device> device, const HostPoolPlan& plan, const HostPoolOptions& options)
    : device_(std::move(device)), plan_(plan) {
    map(options.shared);
    try {
        if (options.huge_pages) {
            ::madvise(data_, plan_.bytes(), MADV_HUGEPAGE);  // advice: small pages serve as well
        }
        if (options.numa_node) {
            bind_to(*options.numa_node);
        }
        pin();
    } catch (...) {
        close();
        throw;
    }
}

HostPool::~HostPool() { close(); }

// On a huge page, of pages that exist once they are touched.
void HostPool::map(bool shared) {
    const std::size_t bytes = rounded_up(plan_.bytes(), page_bytes_here());
    void* found =
        ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) {
        refuse("a mapping", bytes);
    }
    auto* first = static_cast<std::uint8_t*>(found);
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
    data_ = first + before;
    if (before != 0) {
        ::munmap(first, before);
    }
    if (before != kHugePage) {
        ::munmap(data_ + bytes, kHugePage - before);
    }
    if (shared) {
        put_shared_pages(bytes);
    }
    // A fork would share the pages until one of the two processes writes, and then give the writer others than those
    // that the device knows. So a child has none of them.
    ::madvise(data_, bytes, MADV_DONTFORK);
}

// Over the addresses that were found: pages of a file without a name.
void HostPool::put_shared_pages(std::size_t bytes) {
    descriptor_ = ::memfd_create("kvfix-host-pool", MFD_CLOEXEC);
    if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0 ||
        ::mmap(data_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, descriptor_, 0) ==
            MAP_FAILED) {
        const int error = errno;
        close();
        errno = error;
        refuse("shared pages", bytes);
    }
}

// A system call of its own, so that no library has to be there. A machine without nodes refuses, and needs none.
void HostPool::bind_to(unsigned node) {
    constexpr std::size_t kBits = 8 * sizeof(unsigned long);
    unsigned long nodes[16] = {};
    if (node < std::size(nodes) * kBits) {
        nodes[node / kBits] = 1UL << (node % kBits);
        numa_bound_ = ::syscall(SYS_mbind, data_, rounded_up(plan_.bytes(), page_bytes_here()), kPreferNode, nodes,
                                std::size(nodes) * kBits, 0) == 0;
    }
}

void HostPool::pin() {
    const std::size_t piece = plan_.slots_per_piece * plan_.slot_bytes;
    const std::size_t bytes = plan_.bytes();
    for (std::size_t begin = 0; begin < bytes; begin += piece) {
        const std::span<std::uint8_t> part{data_ + begin, std::min(piece, bytes - begin)};
#ifdef MADV_POPULATE_WRITE
        // Pages that cannot be had are an error here, and not a signal later. Older kernels do not know the advice.
        if (::madvise(part.data(), rounded_up(part.size(), page_bytes_here()), MADV_POPULATE_WRITE) != 0 &&
            errno != EINVAL) {
            refuse("pages", part.size());
        }
#endif
        device_->register_host(part.data(), part.size());
        pinned_.push_back(part);
        bytes_pinned_ += part.size();
        at_same_address_ &= device_->device_address(part.data()) == reinterpret_cast<std::uintptr_t>(part.data());
    }
}

void HostPool::close() {
    if (home_.left()) {
        abandon();
    }
    std::erase_if(pinned_, [&](const std::span<std::uint8_t>& part) {
        try {
            device_->unregister_host(part.data());
        } catch (const DeviceError&) {
            return false;  // the device may still use it: a leak beats a stray write
        }
        bytes_pinned_ -= part.size();
        return true;
    });
    if (data_ != nullptr && pinned_.empty()) {
        ::munmap(data_, rounded_up(plan_.bytes(), page_bytes_here()));
    }
    data_ = nullptr;
    if (descriptor_ >= 0) {
        ::close(descriptor_);
        descriptor_ = -1;
    }
}

void HostPool::abandon() {
    pinned_.clear();
    data_ = nullptr;
}

std::vector<std::uint64_t> HostPool::digests(std::span<const std::uint64_t> slots, std::uint64_t key) const {
    home_.check("this HostPool");
    std::vector<std::uint64_t> out;
    out.reserve(slots.size());
    for (const std::uint64_t slot : slots) {
        if (slot >= plan_.slots || data_ == nullptr) {
            throw std::invalid_argument("host pool: slot " + std::to_string(slot) + " of " +
                                        std::to_string(data_ == nullptr ? 0 : plan_.slots));
        }
        out.push_back(digest_of({data_ + slot * plan_.slot_bytes, plan_.block_bytes}, key));
    }
    return out;
}

std::uint64_t digest_of(std::span<const std::uint8_t> bytes, std::uint64_t key) {
    std::uint64_t digest = bytes.size();
    for (std::uint64_t place = 0; place * sizeof(DigestPiece) < bytes.size(); ++place) {
        DigestPiece piece{};  // the last one ends with zeros
        const std::size_t begin = place * sizeof piece;
        if (bytes.size() - begin >= sizeof piece) {
            std::memcpy(&piece, bytes.data() + begin, sizeof piece);  // in registers
        } else {
            std::memcpy(&piece, bytes.data() + begin, bytes.size() - begin);
        }
        digest += digest_summand(key, place, piece);
    }
    return digest;
}

}  // namespace kvfix
