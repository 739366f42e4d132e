// How many threads a call may use.
#pragma once

namespace moelab {

// num_threads <= 0: the OpenMP setting of the calling thread. In a child forked after the parent's OpenMP team
// had started the answer is 1: the runtime would wait for threads that exist only in the parent.
int clamp_threads(int num_threads);

}  // namespace moelab
