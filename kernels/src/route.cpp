#include "route.h"

#include "error.h"

namespace moelab {

moelab_status check_ids(const moelab_call& call, int64_t num_experts) {
    for (int64_t t = 0; t < call.tokens; ++t)
        for (int64_t s = 0; s < call.topk; ++s) {
            const int64_t id = slot_id(call, t, s);
            if (id < -1 || id >= num_experts)
                return fail(MOELAB_INVALID, "topk_ids[%lld, %lld]: %lld; expected -1 (skip) or 0 to %lld",
                            static_cast<long long>(t), static_cast<long long>(s), static_cast<long long>(id),
                            static_cast<long long>(num_experts - 1));
        }
    return MOELAB_OK;
}

int64_t max_rows(int64_t tokens, int64_t topk, int64_t num_experts, int64_t row_align) {
    const int64_t slots = tokens * topk;
    const int64_t active = slots < num_experts ? slots : num_experts;
    return slots + active * (row_align - 1);
}

void route(const moelab_call& call, int64_t token0, int64_t token1, int64_t num_experts, int64_t row_align,
           const Routing& routing) {
    for (int64_t e = 0; e < num_experts; ++e) routing.rows[e] = 0;
    for (int64_t t = token0; t < token1; ++t)
        for (int64_t s = 0; s < call.topk; ++s) {
            const int64_t id = slot_id(call, t, s);
            if (id >= 0) ++routing.rows[id];
        }
    int64_t next = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
        routing.first[e] = next;
        next += (routing.rows[e] + row_align - 1) / row_align * row_align;
        routing.rows[e] = 0;  // counts up again below
    }
    int64_t slot = 0;
    for (int64_t t = token0; t < token1; ++t)
        for (int64_t s = 0; s < call.topk; ++s, ++slot) {
            const int64_t id = slot_id(call, t, s);
            const float weight = call.topk_weights[t * call.weights_stride[0] + s * call.weights_stride[1]];
            routing.slot_weight[slot] = call.router_weight_on_input ? 1.0f : weight;
            routing.slot_row[slot] = -1;
            if (id < 0) continue;
            const int64_t row = routing.first[id] + routing.rows[id]++;
            routing.token[row] = t - token0;
            routing.scale[row] = weight;
            routing.slot_row[slot] = row;
        }
}

}  // namespace moelab
