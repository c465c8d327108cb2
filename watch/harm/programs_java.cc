// What Programs.java asks of the driver.
#include <jni.h>

#include "cuda.h"

namespace {

harm::Cuda& cuda() {
    static harm::Cuda made;
    return made;
}

}  // namespace

extern "C" JNIEXPORT jobject JNICALL Java_Programs_begin(JNIEnv* environment, jclass /*programs*/) {
    char* const page = cuda().pinned(harm::kPage);
    cuda().close();
    cuda().fetch(page + 512, 256);
    return environment->NewDirectByteBuffer(page, 256);
}

extern "C" JNIEXPORT void JNICALL Java_Programs_end(JNIEnv* /*environment*/, jclass /*programs*/) { cuda().finish(); }
