// A double of libcuda, for a client that finds the driver by itself: memory of the device is memory of the host, a copy
// is done when the call returns, and so is every event. Whoever records one waits for the stream first (torch_double.py).
// It has what the client calls, and no more: a call that is missing ends the process with its name.
// Needs a C compiler. Preloaded, so that NIXL registers this memory, too: without a GPU its UCX refuses it.
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DONE(name, ...) int name(__VA_ARGS__) { return 0; }
#define MAKES(name, ...) int name(void **made, __VA_ARGS__) { return (*made = malloc(1)) ? 0 : 2; }
#define DROPS(name, ...) int name(void *dropped, ##__VA_ARGS__) { free(dropped); return 0; }

static char context;

DONE(cuInit, unsigned flags)
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **made, int device) { *made = &context; return 0; }
DONE(cuDevicePrimaryCtxRelease_v2, int device)
int cuCtxGetCurrent(void **current) { *current = &context; return 0; }
DONE(cuCtxSetCurrent, void *wanted)
DONE(cuCtxSynchronize, void)
int cuGetErrorName(int error, const char **text) { *text = "double"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "an error of the double"; return 0; }

MAKES(cuStreamCreate, unsigned flags)
DROPS(cuStreamDestroy_v2)
DONE(cuStreamSynchronize, void *stream)
DONE(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
MAKES(cuEventCreate, unsigned flags)
DROPS(cuEventDestroy_v2)
DONE(cuEventRecord, void *event, void *stream)
DONE(cuEventSynchronize, void *event)
DONE(cuEventQuery, void *event)

int cuMemHostAlloc(void **made, size_t bytes, unsigned flags) { return posix_memalign(made, 4096, bytes) ? 2 : 0; }
DROPS(cuMemFreeHost)
int cuMemAlloc_v2(void **made, size_t bytes) { return posix_memalign(made, 4096, bytes) ? 2 : 0; }
DROPS(cuMemFree_v2)
MAKES(cuMemPoolCreate, const void *properties)
DROPS(cuMemPoolDestroy)
DONE(cuMemPoolSetAttribute, void *pool, int attribute, void *value)
int cuMemAllocFromPoolAsync(void **made, size_t bytes, void *pool, void *stream) {
  return posix_memalign(made, 256, bytes) ? 2 : 0;
}
DROPS(cuMemFreeAsync, void *stream)
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) { memcpy(to, from, bytes); return 0; }

// A test may hold what goes to the host, so that it comes as late as the test wants.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static int held;
void double_hold_saves(int hold) {
  pthread_mutex_lock(&mutex);
  held = hold;
  pthread_cond_broadcast(&let_go);
  pthread_mutex_unlock(&mutex);
}
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  pthread_mutex_lock(&mutex);
  while (held) pthread_cond_wait(&let_go, &mutex);
  pthread_mutex_unlock(&mutex);
  memcpy(to, from, bytes);
  return 0;
}

// nixlAgent::registerMem and deregisterMem: success.
DONE(_ZN9nixlAgent11registerMemERK12nixlDescListI12nixlBlobDescEPK21nixlAgentOptionalArgs, void *agent, void *list)
DONE(_ZN9nixlAgent13deregisterMemERK12nixlDescListI12nixlBlobDescEPK21nixlAgentOptionalArgs, void *agent, void *list)
