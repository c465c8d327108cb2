// Holds the lock of the books and notices a caller that enters twice.
#pragma once

#include "books.h"

namespace bound {

class Books::Entry {
  public:
    explicit Entry(const Books& books) : books_(books) { lock(); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() {
        if (held_) unlock();
    }

    void lock() {
        // The real lock is not recursive, so this call would hang for ever, which helps no test.
        check(books_.inside_.load() != std::this_thread::get_id(), "re-entered under the tree's lock: a deadlock");
        books_.mutex_.lock();
        books_.inside_ = std::this_thread::get_id();
        held_ = true;
    }

    void unlock() {
        books_.inside_ = std::thread::id();
        books_.mutex_.unlock();
        held_ = false;
    }

  private:
    const Books& books_;
    bool held_ = false;
};

}  // namespace bound
