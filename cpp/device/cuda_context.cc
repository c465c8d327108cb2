#include "device/cuda_context.h"

#include <array>

namespace kvfix::cuda {

CurrentContext::CurrentContext(const Driver& driver, Context context) : driver_(driver), context_(context) {
    driver_.get_current(&before_);
    if (before_ != context_) {
        driver_.set_current(context_);
    }
    static_cast<void>(driver_.exchange_capture_mode.result(&capture_mode_));  // refuses modes that do not exist
}

CurrentContext::~CurrentContext() {
    static_cast<void>(driver_.exchange_capture_mode.result(&capture_mode_));
    if (before_ != context_) {
        static_cast<void>(driver_.set_current.result(before_));  // fails only while the process ends
    }
}

PrimaryContext::PrimaryContext(const Driver& loaded, int ordinal) : driver(loaded), ordinal_(ordinal) {
    int count = 0;
    driver.device_count(&count);
    if (ordinal < 0 || ordinal >= count) {
        throw DeviceError("cuda:" + std::to_string(ordinal) + " does not exist: this process sees " +
                          std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                          ", counted from 0; usual cause: CUDA_VISIBLE_DEVICES hides the others");
    }
    driver.device(&device_, ordinal);
    driver.primary_retain(&context_, device_);
}

PrimaryContext::~PrimaryContext() { static_cast<void>(driver.primary_release.result(device_)); }

std::string PrimaryContext::name() const {
    std::array<char, 256> model{};
    driver.device_name(model.data(), static_cast<int>(model.size()) - 1, device_);
    return "cuda:" + std::to_string(ordinal_) + " " + model.data();
}

std::uint32_t PrimaryContext::attribute(int which) const {
    int value = 0;
    driver.device_attribute(&value, which, device_);
    return static_cast<std::uint32_t>(value);
}

}  // namespace kvfix::cuda
