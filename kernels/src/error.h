// Failures as values: a status for the caller, a sentence for the person.
#pragma once

#include "moelab.h"

namespace moelab {

// Keeps the formatted sentence for moelab_last_error() of this thread and returns `status`.
moelab_status fail(moelab_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace moelab
