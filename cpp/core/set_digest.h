// Folds numbers into 64 bits. Equal numbers give equal digests in every process. It promises nothing else.
#pragma once

#include <cstdint>

namespace kvfix {

class Digest {
  public:
    void mix(std::uint64_t value) {
        state_ ^= value + 0x9e3779b97f4a7c15 + (state_ << 12) + (state_ >> 4);
        state_ *= 0xff51afd7ed558ccd;
        state_ ^= state_ >> 32;
    }
    std::uint64_t value() const { return state_; }

  private:
    std::uint64_t state_ = 0x243f6a8885a308d3;
};

template <class... Words>
std::uint64_t digest_of_words(Words... words) {
    Digest digest;
    (digest.mix(static_cast<std::uint64_t>(words)), ...);
    return digest.value();
}

// The digest of a set in 64 bits, kept up to date as members come and go, without a look at those that stay. The order
// in which they came does not matter. If a member's place matters, the member must include it.
class SetDigest {
  public:
    void add(std::uint64_t member) { sum_ += member; }
    void remove(std::uint64_t member) { sum_ -= member; }
    void clear() { sum_ = 0; }
    std::uint64_t value() const { return sum_; }

  private:
    std::uint64_t sum_ = 0;
};

// The same, but kept up to date only from the first question on: most managers are never asked for a digest, and their
// hot paths pay nothing for it. A member is given as the words that distinguish it from the others.
class WatchedDigest {
  public:
    template <class... Words>
    void add(Words... words) {
        if (watched_) [[unlikely]] {
            members_.add(digest_of_words(words...));
        }
    }
    template <class... Words>
    void remove(Words... words) {
        if (watched_) [[unlikely]] {
            members_.remove(digest_of_words(words...));
        }
    }
    // Empties it, as if no digest had been asked for.
    void clear() { *this = {}; }
    // `add_all()` adds every current member; the first question calls it.
    template <class AddAll>
    std::uint64_t value(AddAll&& add_all) {
        if (!watched_) {
            watched_ = true;
            add_all();
        }
        return members_.value();
    }

  private:
    SetDigest members_;
    bool watched_ = false;
};

}  // namespace kvfix
