// What we do inside the program's calls is not to be seen in errno: a call that succeeds may leave it alone.
#pragma once

#include <cerrno>

namespace hostrace {

class ErrnoKept {
  public:
    ErrnoKept() : before_(errno) {}
    ErrnoKept(const ErrnoKept&) = delete;
    ErrnoKept& operator=(const ErrnoKept&) = delete;
    ~ErrnoKept() { errno = before_; }

  private:
    int before_;
};

}  // namespace hostrace
