// What tests of devices ask of an error.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "device/device.h"

namespace kvfix {

// The message of the DeviceError that the call throws; a test failure if it does not throw.
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
