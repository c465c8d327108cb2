#include "device/cuda_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "device/pages.h"

namespace kvfix::cuda {

void* PinnedMaps::map(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw DeviceError("map_pinned: no " + std::to_string(bytes) + " bytes of address space: " +
                          std::strerror(errno) + "; usual cause: a size of 0, or a limit on the process (ulimit -v)");
    }
    try {
        // The driver pins whole pages in any case. A tool that watches host memory learns that the last is ours alone.
        register_host(context_, memory, rounded_up(bytes, page_bytes_here()));
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
