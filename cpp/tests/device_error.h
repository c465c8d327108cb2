// Helpers for tests of a device's errors.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "device/device.h"

namespace kvfix {

// Returns the message of the DeviceError that the call throws. If it does not throw, the test fails.
template <typename Call>
std::string error_of(Call&& call) {
    try {
        call();
    } catch (const DeviceError& error) {
        return error.what();
    }
    ADD_FAILURE() << "no DeviceError was thrown";
    return {};
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace kvfix
