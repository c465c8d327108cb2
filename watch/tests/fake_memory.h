// Host memory that the driver gives in other ways: allocations without an address, which a program maps and opens for
// itself, and pools. A pool gives memory again that was freed in the order of a stream, though the stream is not there
// yet.
#pragma once

namespace {

using hostrace::cuda::Access;
using hostrace::cuda::AllocationProperties;

std::mutex memory_mutex;
std::vector<AllocationProperties>& allocations = *new std::vector<AllocationProperties>;  // by their handles

constexpr bool of_host(const AllocationProperties& made) { return made.location.type >= 2 && made.location.type <= 4; }

struct Pool {
    AllocationProperties made;
    std::map<std::size_t, std::vector<Address>> free;  // by size
    std::map<Address, std::size_t> given;
    Address next = 0, end = 0;
};
std::map<void*, std::unique_ptr<Pool>>& pools = *new std::map<void*, std::unique_ptr<Pool>>;

Address reserved(std::size_t bytes, int protection) {
    return address_of(mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

}  // namespace

API cuMemCreate(std::uint64_t* handle, std::size_t, const AllocationProperties* made, unsigned long long) {
    const std::lock_guard held(memory_mutex);
    allocations.push_back(*made);
    return *handle = allocations.size(), kSuccess;
}
API cuMemGetAllocationPropertiesFromHandle(AllocationProperties* made, std::uint64_t handle) {
    const std::lock_guard held(memory_mutex);
    return handle == 0 || handle > allocations.size() ? kInvalid : (*made = allocations[handle - 1], kSuccess);
}
API cuMemAddressReserve(Address* result, std::size_t bytes, std::size_t, Address, unsigned long long) {
    return *result = reserved(bytes, PROT_NONE), kSuccess;
}
API cuMemMap(Address begin, std::size_t bytes, std::size_t offset, std::uint64_t handle, unsigned long long flags) {
    struct Map {
        Address begin;
        std::size_t bytes, offset;
        std::uint64_t handle;
        unsigned long long flags;
    };
    return told(551, "cuMemMap", Map{begin, bytes, offset, handle, flags}, [] { return kSuccess; });
}
// The host reaches it when it is told so, and not before.
API cuMemSetAccess(Address begin, std::size_t bytes, const Access* who, std::size_t count) {
    struct Set {
        Address begin;
        std::size_t bytes;
        const Access* who;
        std::size_t count;
    };
    return told(553, "cuMemSetAccess", Set{begin, bytes, who, count}, [=] {
        for (std::size_t at = 0; at < count; ++at) {
            if (who[at].location.type >= 2) {
                mprotect(reinterpret_cast<void*>(begin), bytes, who[at].flags);
            }
        }
        return kSuccess;
    });
}
API cuMemUnmap(Address begin, std::size_t bytes) {
    struct Unmap {
        Address begin;
        std::size_t bytes;
    };
    return told(552, "cuMemUnmap", Unmap{begin, bytes}, [=] {
        mmap(reinterpret_cast<void*>(begin), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        return kSuccess;
    });
}

API cuMemPoolCreate(void** result, const AllocationProperties* made) {
    return told(607, "cuMemPoolCreate", Two{result, const_cast<AllocationProperties*>(made)}, [=] {
        auto pool = std::make_unique<Pool>();
        pool->made = *made;
        const std::lock_guard held(memory_mutex);
        *result = pool.get();
        pools[pool.get()] = std::move(pool);
        return kSuccess;
    });
}
API cuMemPoolSetAccess(void*, const Access*, std::size_t) { return kSuccess; }
// Behind one another, so that they share pages.
API cuMemAllocFromPoolAsync(Address* result, std::size_t bytes, void* pool, void* stream) {
    struct Allocate {
        Address* result;
        std::size_t bytes;
        void *pool, *stream;
    };
    return told(611, "cuMemAllocFromPoolAsync", Allocate{result, bytes, pool, stream}, [=] {
        constexpr std::size_t kChunk = std::size_t{1} << 21, kAlign = 256;
        const std::lock_guard held(memory_mutex);
        Pool& from = *pools.at(pool);
        const std::size_t room = (bytes + kAlign - 1) / kAlign * kAlign;
        if (auto& again = from.free[room]; !again.empty()) {
            *result = again.back();
            again.pop_back();
        } else {
            if (from.end - from.next < room) {
                from.next =
                    of_host(from.made) ? reserved(kChunk, PROT_READ | PROT_WRITE) : address_of(std::calloc(1, kChunk));
                from.end = from.next + kChunk;
            }
            *result = from.next;
            from.next += room;
        }
        from.given[*result] = room;
        return kSuccess;
    });
}
API cuMemFreeAsync(Address begin, void* stream) {
    struct Free {
        Address begin;
        void* stream;
    };
    return told(600, "cuMemFreeAsync", Free{begin, stream}, [=] {
        const std::lock_guard held(memory_mutex);
        for (auto& [handle, pool] : pools) {
            if (const auto found = pool->given.extract(begin); !found.empty()) {
                pool->free[found.mapped()].push_back(begin);
                return kSuccess;
            }
        }
        return kInvalid;
    });
}
API cuMemcpyPeerAsync(Address to, void* to_context, Address from, void* from_context, std::size_t bytes, void* stream) {
    struct Peer {
        Address to;
        void* to_context;
        Address from;
        void* from_context;
        std::size_t bytes;
        void* stream;
    };
    return told(319, "cuMemcpyPeerAsync", Peer{to, to_context, from, from_context, bytes, stream},
                [=] { return enqueue(stream, [=] { device_copy(to, from, bytes); }); });
}
