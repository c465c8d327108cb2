// The calls made through the binding, in order, with their arguments in words.
#pragma once

#include <mutex>
#include <sstream>

#include "books.h"

namespace bound {

class Recorder {
  public:
    using Call = std::pair<std::string, std::string>;

    template <class... Args>
    void note(const char* method, const Args&... args) {
        if (!on) return;
        std::ostringstream text;
        [[maybe_unused]] const char* separator = "";
        ((text << separator, print(text, args), separator = ", "), ...);
        const std::lock_guard<std::mutex> lock(mutex_);
        calls_.emplace_back(method, "(" + text.str() + ")");
    }

    std::vector<Call> calls() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return calls_;
    }

    std::atomic<bool> on{true};

  private:
    static void print(std::ostream& out, bool value) { out << (value ? "True" : "False"); }
    static void print(std::ostream& out, const char* value) { out << value; }
    static void print(std::ostream& out, const Request& request) { out << "LlmRequest(" << request.id << ")"; }
    static void print(std::ostream& out, const Tokens& tokens) { out << "<" << tokens.size() << " tokens>"; }
    static void print(std::ostream& out, const Admission& item) {
        out << "(" << item.id << ", " << item.input_length << ", " << item.beams << ")";
    }
    template <class T>
        requires std::is_integral_v<T>
    static void print(std::ostream& out, T value) {
        out << value;
    }
    template <class T>
    static void print(std::ostream& out, const std::vector<T>& values) {
        const char* separator = "";
        out << "[";
        for (const T& value : values) {
            out << separator;
            print(out, value);
            separator = ", ";
        }
        out << "]";
    }

    mutable std::mutex mutex_;
    std::vector<Call> calls_;
};

}  // namespace bound
