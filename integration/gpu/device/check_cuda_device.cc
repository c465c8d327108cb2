// check_cuda_device [GROUP...]: checks the CUDA device against the promises of device.h, and the kernels against their
// reference. Needs an NVIDIA GPU. The exit code is 1 if anything is broken.
#include <algorithm>
#include <cstdio>

#include "checks.h"
#include "kernels/embedded.h"

namespace kvfix {

void Checks::expect(bool ok, const std::string& what) {
    ++made_;
    if (!ok) {
        ++failed_;
        step("BROKEN: " + what);
    }
}

void Checks::expect_error(const std::string& part, const std::function<void()>& call) {
    std::string message = "nothing was thrown";
    try {
        call();
    } catch (const DeviceError& error) {
        message = error.what();
    }
    step(message);
    expect(message.find(part) != std::string::npos, "expected an error with '" + part + "'");
}

void Checks::step(const std::string& what) const {
    std::printf("  %s\n", what.c_str());
    std::fflush(stdout);
}

namespace {

struct Group {
    const char* name;
    void (*check)(Checks&);
};
constexpr Group kGroups[] = {
    {"first-launches", check_first_launches},
    {"copies", check_copies},
    {"gates", check_gates},
    {"graphs", check_graphs},
    {"kernels", check_kernels},
    {"runtime", check_runtime},
    {"threads", check_threads},
    {"errors", check_errors},
};

int run(const std::vector<std::string>& wanted) {
    Checks checks(open_cuda_device(0));
    std::printf("%s, kernels %s (built: %s), batched copies %s\n", checks.device->name().c_str(),
                checks.device->has_kernels() ? "yes" : "no", kernels_built(),
                checks.device->has_batched_copy() ? "yes" : "no");
    std::size_t groups = 0;
    for (const Group& group : kGroups) {
        if (wanted.empty() || std::ranges::find(wanted, group.name) != wanted.end()) {
            ++groups;
            std::printf("%s\n", group.name);
            std::fflush(stdout);
            group.check(checks);
        }
    }
    std::printf("%zu groups, %d checks, %d broken\n", groups, checks.made(), checks.failed());
    return checks.failed() == 0 && groups != 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvfix

int main(int argc, char** argv) {
    try {
        return kvfix::run({argv + 1, argv + argc});
    } catch (const std::exception& error) {
        std::printf("BROKEN: %s\n", error.what());
        return 1;
    }
}
