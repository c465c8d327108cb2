#include <charconv>
#include <stdexcept>
#include <string_view>

#include "device/device.h"
#include "device/home_device.h"

namespace kvfix {

namespace {

std::unique_ptr<Device> open_here(const std::string& name, std::uint64_t seed) {
    constexpr std::string_view kCuda = "cuda";
    if (name == "cpu") {
        return open_sim_device(seed);
    }
    if (name == "auto") {
        try {
            return open_cuda_device(0);
        } catch (const DeviceError&) {  // no driver or no GPU here, which is why "auto" exists
            return open_sim_device(seed);
        }
    }
    int ordinal = 0;
    const bool numbered = name.size() > kCuda.size() && name.starts_with("cuda:");
    const char* begin = name.data() + (numbered ? kCuda.size() + 1 : name.size());
    const auto parsed = std::from_chars(begin, name.data() + name.size(), ordinal);
    if (name != kCuda && !(numbered && parsed.ec == std::errc() && parsed.ptr == name.data() + name.size())) {
        throw std::invalid_argument("device is '" + name + "'; it is 'auto', 'cpu', 'cuda' or 'cuda:N'");
    }
    return open_cuda_device(ordinal);
}

}  // namespace

std::shared_ptr<Device> open_device(const std::string& name, std::uint64_t seed) {
    return std::make_shared<HomeDevice>(open_here(name, seed));
}

}  // namespace kvfix
