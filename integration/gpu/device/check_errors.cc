// The texts of the driver's refusals, printed for people to read.
#include "checks.h"

namespace kvfix {

void check_errors(Checks& checks) {
    Device& device = *checks.device;
    checks.expect_error("cuda:99 does not exist", [] { open_cuda_device(99); });
    checks.expect_error("cuMemAlloc(", [&] { device.allocate(std::size_t{1} << 50); });
    checks.expect_error("cuMemFree(0x10): ", [&] { device.release(0x10); });
    checks.expect_error("map_pinned: no 0 bytes", [&] { device.map_pinned(0); });

    std::vector<std::byte> pageable(100'000);
    checks.expect_error("cuMemHostGetDevicePointer(", [&] { device.device_address(pageable.data()); });
    checks.expect_error("it was never pinned", [&] { device.unregister_host(pageable.data()); });
    device.register_host(pageable.data(), pageable.size());
    checks.expect(device.device_address(pageable.data() + 70'001) - device.device_address(pageable.data()) == 70'001,
                  "an address inside registered memory has its place on the device");
    checks.expect_error("HOST_MEMORY_ALREADY_REGISTERED",
                        [&] { device.register_host(pageable.data(), pageable.size()); });
    device.unregister_host(pageable.data());

    void* pinned = device.map_pinned(5000);
    checks.expect_error("5000 bytes were mapped", [&] { device.unmap_pinned(pinned, 8192); });
    device.unmap_pinned(pinned, 5000);
    checks.expect_error("unmapped already", [&] { device.unmap_pinned(pinned, 5000); });

    checks.expect_error("cuStreamDestroy(", [&] { device.destroy_stream({0}); });
    checks.expect_error("row_bytes is 9", [&] { device.copy_rows({1, 8, 2, 16, 9, 1}, {}); });
    checks.expect_error("CopyBlocks: bytes is 20",
                        [&] { device.launch(CopyBlocks{.pairs = nullptr, .count = 1, .bytes = 20}, {}); });
}

}  // namespace kvfix
