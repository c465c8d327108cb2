// JSON in a buffer of somebody else's. It never overflows: what does not fit is left out.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hostrace {

class Text {
  public:
    Text(char* begin, std::size_t size) : begin_(begin), size_(size) {}
    Text& operator<<(const char* text) { return bytes(text, std::strlen(text)); }
    Text& operator<<(std::uint64_t number) {
        std::array<char, 20> made;
        std::size_t at = made.size();
        do {
            made[--at] = static_cast<char>('0' + number % 10);
            number /= 10;
        } while (number != 0);
        return bytes(made.data() + at, made.size() - at);
    }
    // Goes before an item of a list or of an object: what separates it from the one before it.
    Text& item() {
        const bool first = used_ == 0 || begin_[used_ - 1] == '[' || begin_[used_ - 1] == '{';
        return first ? *this : *this << ",";
    }
    Text& name(const char* text) { return item().quoted(text) << ":"; }
    Text& quoted(const char* text) { return (*this << "\"").escaped(text) << "\""; }
    Text& escaped(const char* text) {
        for (; *text != '\0'; ++text) {
            const auto byte = static_cast<unsigned char>(*text);
            byte < 0x80 ? sign(byte) : bytes(text, 1);
        }
        return *this;
    }
    // One sign of a string, of any script.
    Text& sign(std::uint32_t sign) {
        if (sign >= 0x10000) {
            return unit(0xd800 + (sign - 0x10000) / 0x400 % 0x400).unit(0xdc00 + sign % 0x400);
        }
        const bool plain = sign >= ' ' && sign < 0x7f && sign != '"' && sign != '\\';
        const bool half = sign >= 0xd800 && sign < 0xe000;  // of a sign: text of that kind cannot be printed
        const auto byte = static_cast<char>(sign);
        return plain ? bytes(&byte, 1) : unit(half ? 0xfffd : sign);
    }
    Text& bytes(const char* text, std::size_t count) {
        count = std::min(count, size_ - used_);
        std::memcpy(begin_ + used_, text, count);
        used_ += count;
        return *this;
    }
    // What `write` adds is left out, and false the answer, where it leaves no room for what closes the text behind it.
    template <typename Write>
    bool whole(Write write) {
        constexpr std::size_t kClosing = 512;
        const std::size_t before = used_;
        write();
        const bool fits = size_ - used_ >= kClosing;
        used_ = fits ? used_ : before;
        return fits;
    }
    const char* data() const { return begin_; }
    std::size_t size() const { return used_; }

  private:
    Text& unit(std::uint32_t value) {
        *this << "\\u";
        for (const int shift : {12, 8, 4, 0}) {
            bytes(&"0123456789abcdef"[value >> shift & 15], 1);
        }
        return *this;
    }

    char* begin_;
    std::size_t size_;
    std::size_t used_ = 0;
};

}  // namespace hostrace
