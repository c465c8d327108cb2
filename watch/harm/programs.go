// A Go program that is right: its goroutines write to pinned memory beside copies, and files are read into it. It says
// what it found. Go calls the kernel itself, and not by way of the C library.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static void* entry(const char* name) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    void* found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) abort();
    return found;
}
static void check(int result) { if (result != 0) abort(); }

static void* context;
static void begin(void) {
    check(((int (*)(unsigned))entry("cuInit"))(0));
    check(((int (*)(void**, int))entry("cuDevicePrimaryCtxRetain"))(&context, 0));
}
static void use(void) { check(((int (*)(void*))entry("cuCtxSetCurrent"))(context)); }
static void* pinned(size_t bytes) {
    void* made;
    check(((int (*)(void**, size_t, unsigned))entry("cuMemHostAlloc"))(&made, bytes, 3));
    return made;
}
static void* stream(void) {
    void* made;
    check(((int (*)(void**, unsigned))entry("cuStreamCreate"))(&made, 1));
    return made;
}
static unsigned long long memory(size_t bytes) {
    unsigned long long made;
    check(((int (*)(unsigned long long*, size_t))entry("cuMemAlloc_v2"))(&made, bytes));
    return made;
}
static void sent(unsigned long long to, void* from, size_t bytes, void* stream) {
    check(((int (*)(unsigned long long, void*, size_t, void*))entry("cuMemcpyHtoDAsync_v2"))(to, from, bytes, stream));
}
static void wait(void* stream) { check(((int (*)(void*))entry("cuStreamSynchronize"))(stream)); }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

func copies(number byte) int {
	runtime.LockOSThread()
	C.use()
	page, stream, memory := C.pinned(4096), C.stream(), C.memory(4096)
	bytes := unsafe.Slice((*byte)(page), 4096)
	file, failed := os.Open("/proc/self/exe")
	sum := 0
	for round := 0; round < 50; round++ {
		for at := 0; at < 256; at++ {
			bytes[at] = number
		}
		C.sent(memory, page, 256, stream)
		if failed == nil {
			_, failed = file.Read(bytes[512:1024])
		}
		for at := 1024; at < 4096; at++ {
			bytes[at] = byte(round)
			sum += int(bytes[at])
		}
		C.wait(stream)
	}
	if failed != nil {
		fmt.Println(failed)
	}
	return sum
}

func recovered() (said any) {
	defer func() { said = recover() }()
	var nothing *int
	return *nothing
}

func main() {
	C.begin()
	var group sync.WaitGroup
	sums := make([]int, 4)
	for number := range sums {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			sums[number] = copies(byte(number))
		}(number)
	}
	group.Wait()
	fmt.Println("sums", sums)
	fmt.Println("recovered", recovered())
}
