// A program of C++ that races; test_symbols.py wants the lines that it marks.
#include "../harm/cuda.h"

namespace app {

struct Server {
    harm::Cuda cuda;
    char* host = nullptr;

    [[gnu::noinline]] void pin() {
        host = cuda.pinned(harm::kPage);  // pins
    }
    void ship() {
        cuda.close();
        cuda.send(host, harm::kPage);  // enqueues
    }
    [[gnu::always_inline]] void fill(char value) {
        host[7] = value;  // touches
    }
    [[gnu::noinline]] void next_step() {
        fill(3);  // calls
    }
};

}  // namespace app

int main() {
    app::Server server;
    server.pin();
    server.ship();
    server.next_step();
    server.cuda.finish();
}
