#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace moelab {
namespace {
thread_local char last_error[512] = "";
}

moelab_status fail(moelab_status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

}  // namespace moelab

extern "C" const char* moelab_last_error(void) {
    return moelab::last_error;
}
