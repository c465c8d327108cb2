// Calls a function in each thread that asked for it, when that thread ends.
#pragma once

#include <pthread.h>

namespace hostrace {

class ThreadEnd {
  public:
    explicit ThreadEnd(void (*call)(void*)) { has_key_ = pthread_key_create(&key_, call) == 0; }
    ~ThreadEnd() {
        if (has_key_) {
            pthread_key_delete(key_);
        }
    }
    ThreadEnd(const ThreadEnd&) = delete;
    ThreadEnd& operator=(const ThreadEnd&) = delete;

    // With `data`, which is not null.
    void ask(const void* data) const {
        if (has_key_) {
            pthread_setspecific(key_, data);
        }
    }

  private:
    pthread_key_t key_{};
    bool has_key_ = false;
};

}  // namespace hostrace
