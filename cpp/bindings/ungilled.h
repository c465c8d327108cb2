// Objects that Python makes and drops with the GIL held, although that may wait for the device: for its memory, which a
// driver gives back when all streams have passed, for copies in flight, for a thread. Other threads of Python go on
// meanwhile. One of them may be the thread that the device waits for.
#pragma once

#include <concepts>
#include <optional>
#include <utility>

#include "bindings/bindings.h"

namespace kvfix::bindings {

class GilLoan {
  protected:
    std::optional<GilReleased> loan_{std::in_place};
};

// A T that is made and ended without the GIL. Two bases, because bases are made in this order and ended in the other: the loan spans both.
template <class T>
class Ungilled : private GilLoan, public T {  // NOLINT(misc-multiple-inheritance)
  public:
    template <class... Args>
        requires std::constructible_from<T, Args...>
    explicit Ungilled(Args&&... args) : T(std::forward<Args>(args)...) {
        loan_.reset();
    }
    Ungilled(const Ungilled&) = delete;
    Ungilled& operator=(const Ungilled&) = delete;
    ~Ungilled() { loan_.emplace(); }
};

}  // namespace kvfix::bindings
