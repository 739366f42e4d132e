// From topk_ids to rows: count, prefix sum, and where each slot's row went.
#pragma once

#include <cstdint>

#include "moelab.h"

namespace moelab {

// Arrays of one chunk of tokens, in the caller's scratch.
struct Routing {
    int64_t* rows;       // [E] rows of each expert
    int64_t* first;      // [E] its first row in the packed A, a multiple of `row_align`
    int64_t* token;      // [rows, padded] source token of each row, relative to the chunk
    float* scale;        // [rows, padded] router weight of each row
    int64_t* slot_row;   // [tokens * topk] row of each slot, -1: skipped
    float* slot_weight;  // [tokens * topk]
};

// The id of a slot, whatever its type and strides.
inline int64_t slot_id(const moelab_call& call, int64_t token, int64_t slot) {
    const int64_t at = token * call.ids_stride[0] + slot * call.ids_stride[1];
    return call.ids_are_int64 ? static_cast<const int64_t*>(call.topk_ids)[at]
                              : static_cast<int64_t>(static_cast<const int32_t*>(call.topk_ids)[at]);
}

// INVALID names the first id outside {-1, 0 ... E-1}.
moelab_status check_ids(const moelab_call& call, int64_t num_experts);

// Upper bound of the rows of `tokens` tokens, alignment included.
int64_t max_rows(int64_t tokens, int64_t topk, int64_t num_experts, int64_t row_align);

// Routes tokens [token0, token1). Slots of one expert keep token order.
void route(const moelab_call& call, int64_t token0, int64_t token1, int64_t num_experts, int64_t row_align,
           const Routing& routing);

}  // namespace moelab
