// Texts that show what a value holds: Name(field=value, ...).
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/types.h"

namespace kvfix::bindings {

class Repr {
  public:
    explicit Repr(const char* name) : text_(std::string(name) + "(") {}

    template <class Value>
    Repr& add(const char* field, const Value& value) {
        text_ += std::string(text_.back() == '(' ? "" : ", ") + field + "=" + shown(value);
        return *this;
    }
    // For counts that are mostly zero.
    template <std::integral Value>
    Repr& add_unless_zero(const char* field, Value value) {
        return value == 0 ? *this : add(field, value);
    }
    std::string text() const { return text_ + ")"; }

  private:
    static std::string shown(const std::string& text) { return text; }
    static std::string shown(const char* name) { return "'" + std::string(name) + "'"; }
    static std::string shown(bool value) { return value ? "True" : "False"; }
    static std::string shown(double value) { return std::to_string(value); }
    template <std::integral Value>
    static std::string shown(Value value) {
        return std::to_string(value);
    }
    template <class Value>
        requires std::is_enum_v<Value>
    static std::string shown(Value value) {
        return std::to_string(number(value));
    }
    template <class Value>
    static std::string shown(const std::optional<Value>& value) {
        return value ? shown(*value) : "None";
    }
    template <std::integral Value>
    static std::string shown(const std::vector<Value>& values) {
        std::string text = "[";
        for (const Value value : values) {
            text += (text.back() == '[' ? "" : ", ") + shown(value);
        }
        return text + "]";
    }

    std::string text_;
};

}  // namespace kvfix::bindings
