// Text in a buffer of somebody else's. It never overflows: what does not fit is left out.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvfix::watch {

class Text {
  public:
    Text(char* begin, std::size_t size) : begin_(begin), size_(size) {}
    Text& operator<<(const char* text) { return bytes(text, std::strlen(text)); }
    Text& operator<<(std::uint64_t number) { return digits(number, 10); }
    Text& hex(std::uint64_t number) { return (*this << "0x").digits(number, 16); }
    Text& bytes(const char* text, std::size_t count) {
        count = std::min(count, size_ - used_);
        std::memcpy(begin_ + used_, text, count);
        used_ += count;
        return *this;
    }
    const char* data() const { return begin_; }
    std::size_t size() const { return used_; }

  private:
    Text& digits(std::uint64_t number, std::uint64_t base) {
        std::array<char, 20> made;
        std::size_t at = made.size();
        do {
            made[--at] = "0123456789abcdef"[number % base];
            number /= base;
        } while (number != 0);
        return bytes(made.data() + at, made.size() - at);
    }

    char* begin_;
    std::size_t size_;
    std::size_t used_ = 0;
};

}  // namespace kvfix::watch
