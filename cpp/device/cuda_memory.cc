#include "device/cuda_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvfix::cuda {
namespace {

std::size_t whole_pages(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
}

}  // namespace

void* PinnedMaps::map(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw DeviceError("map_pinned: no " + std::to_string(bytes) + " bytes of address space: " +
                          std::strerror(errno) + "; usual cause: a size of 0, or a limit on the process (ulimit -v)");
    }
    try {
        // The driver pins whole pages in any case. A tool that watches host memory learns that the last is ours alone.
        register_host(context_, memory, whole_pages(bytes));
    } catch (...) {
        munmap(memory, bytes);
        throw;
    }
    const std::lock_guard lock(mutex_);
    bytes_.emplace(memory, bytes);
    return memory;
}

void PinnedMaps::unmap(void* memory, std::size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        const auto mapped = bytes_.find(memory);
        if (mapped == bytes_.end() || mapped->second != bytes) {
            throw DeviceError("unmap_pinned(" + argument_text(memory) + ", " + std::to_string(bytes) + "): " +
                              (mapped == bytes_.end() ? "not mapped here, or unmapped already"
                                                      : std::to_string(mapped->second) + " bytes were mapped"));
        }
        bytes_.erase(mapped);
    }
    const CurrentContext current = context_.use();
    context_.driver.host_unregister(memory);  // if this fails the pages stay: a leak beats a stray write
    munmap(memory, bytes);
}

void register_host(const PrimaryContext& context, void* memory, std::size_t bytes) {
    const CurrentContext current = context.use();
    context.driver.host_register(memory, bytes, kRegisterPortable | kRegisterDeviceMap);
}

Address device_address(const PrimaryContext& context, void* pinned) {
    const CurrentContext current = context.use();
    Address address = 0;
    context.driver.host_device_pointer(&address, pinned, 0);
    return address;
}

}  // namespace kvfix::cuda
