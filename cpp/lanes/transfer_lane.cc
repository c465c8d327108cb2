#include "lanes/transfer_lane.h"

#include <utility>

namespace kvfix {
namespace {

constexpr std::chrono::milliseconds kDestructorLimit{1000};

}  // namespace

TransferLane::TransferLane(std::shared_ptr<Device> device, const LaneConfig& config)
    : loop_(std::make_shared<LaneLoop>(std::move(device), config)), thread_([loop = loop_] { loop->run(); }) {}

TransferLane::~TransferLane() {
    if (home_.left()) {
        thread_.detach();  // it was not copied, and its share keeps the loop as the fork found it
        return;
    }
    if (!close(kDestructorLimit) && thread_.joinable()) {
        thread_.detach();
    }
}

bool TransferLane::close(std::chrono::milliseconds limit) {
    if (!loop().stop(limit)) {
        return false;
    }
    const std::lock_guard guard(joining_);
    if (thread_.joinable()) {
        thread_.join();
    }
    return true;
}

}  // namespace kvfix
