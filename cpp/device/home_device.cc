#include "device/home_device.h"

#include <stdexcept>
#include <utility>

#include "device/sim_device.h"

namespace kvfix {

HomeDevice::HomeDevice(std::unique_ptr<Device> device) : name_(device->name()), device_(std::move(device)) {}

HomeDevice::~HomeDevice() {
    if (home_.left()) {  // ending it would wait for streams that this process does not have
        static_cast<void>(device_.release());
    }
}

Device& HomeDevice::here() const {
    if (home_.left()) [[unlikely]] {
        throw DeviceError(home_.refusal(name_));
    }
    return *device_;
}

SimDevice& simulated_device(Device& device) {
    auto* const home = dynamic_cast<HomeDevice*>(&device);
    auto* const sim = dynamic_cast<SimDevice*>(home == nullptr ? &device : &home->here());
    if (sim == nullptr) {
        throw std::invalid_argument("device is " + device.name() + ": faults are planned on a simulated one only");
    }
    return *sim;
}

void HomeDevice::destroy_stream(StreamHandle stream) {
    if (!home_.left()) {
        device_->destroy_stream(stream);
    }
}

void HomeDevice::destroy_event(EventHandle event) {
    if (!home_.left()) {
        device_->destroy_event(event);
    }
}

void HomeDevice::unmap_pinned(void* memory, std::size_t bytes) {
    if (!home_.left()) {
        device_->unmap_pinned(memory, bytes);
    }
}

void HomeDevice::unregister_host(void* memory) {
    if (!home_.left()) {
        device_->unregister_host(memory);
    }
}

void HomeDevice::release(std::uintptr_t address) {
    if (!home_.left()) {
        device_->release(address);
    }
}

void HomeDevice::destroy_graph(GraphHandle graph) {
    if (!home_.left()) {
        device_->destroy_graph(graph);
    }
}

void HomeDevice::open_gate(GateHandle gate) {
    if (!home_.left()) {
        device_->open_gate(gate);
    }
}

}  // namespace kvfix
