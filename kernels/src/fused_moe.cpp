// The fused layer: route -> gather and pack rows -> GEMM1 + activation -> GEMM2 -> weighted combine.
//
// One OpenMP team per call, a barrier between the phases. Within a phase every thread works on its own piece
// (partition.h); nothing is reduced across threads, so the result does not depend on their number.
#include <omp.h>

#include <cstdlib>
#include <cstring>

#include "core_table.h"
#include "error.h"
#include "packed.h"
#include "partition.h"
#include "phase.h"
#include "profile.h"
#include "route.h"
#include "scratch.h"
#include "threads.h"

namespace moelab {
namespace {

// Long prefills are cut into chunks of tokens whose scratch stays below this; bits do not depend on the cut.
constexpr int64_t scratch_limit = int64_t{512} << 20;
constexpr int64_t combine_columns = 512;  // so that one token is combined by several threads

thread_local Scratch scratch;
thread_local double profile[kPhases + 1];

bool profiling() {
    static const bool on = [] {
        const char* text = std::getenv("MOELAB_PROFILE");
        return text && *text && std::strcmp(text, "0") != 0;
    }();
    return on;
}

// The pieces of one chunk's scratch.
struct Work {
    Routing routing;
    char *a, *h;
    float* y;
    int64_t a_row, h_row, y_stride;  // bytes, bytes, elements per packed row
};

int64_t bytes_per_row(const Layout& layout) {
    const Geometry& g = layout.isa->geometry;
    return (layout.hidden_k + layout.inter_k) * g.a_bytes + layout.panels2 * g.nr * 4 + 16;
}

// Tokens per chunk.
int64_t chunk_tokens(const Layout& layout, const moelab_call& call) {
    const int64_t rows = scratch_limit / bytes_per_row(layout);
    const int64_t tokens = rows / call.topk;
    return tokens < 1 ? 1 : tokens < call.tokens ? tokens : call.tokens;
}

moelab_status lay_out(const Layout& layout, const moelab_call& call, int64_t tokens, Work* work) {
    const Geometry& g = layout.isa->geometry;
    const int64_t experts = layout.layer.num_experts, slots = tokens * call.topk;
    const int64_t rows = max_rows(tokens, call.topk, experts, g.ra);
    work->a_row = layout.hidden_k * g.a_bytes;
    work->h_row = layout.inter_k * g.a_bytes;
    work->y_stride = layout.panels2 * g.nr;
    int64_t offset = 0;
    const auto take = [&](int64_t bytes) {
        const int64_t at = offset;
        offset += round_up(bytes, 64);
        return at;
    };
    const int64_t rows_at = take(experts * 8), first_at = take(experts * 8), token_at = take(rows * 8),
                  scale_at = take(rows * 4), slot_row_at = take(slots * 8), slot_weight_at = take(slots * 4);
    const int64_t a_at = take(rows * work->a_row), h_at = take(rows * work->h_row),
                  y_at = take(rows * work->y_stride * 4);
    char* base = static_cast<char*>(scratch.reserve(offset));
    if (!base)
        return fail(MOELAB_NO_MEMORY, "scratch: no memory for %lld bytes (%lld tokens x top-%lld)",
                    static_cast<long long>(offset), static_cast<long long>(tokens), static_cast<long long>(call.topk));
    work->routing = {reinterpret_cast<int64_t*>(base + rows_at),     reinterpret_cast<int64_t*>(base + first_at),
                     reinterpret_cast<int64_t*>(base + token_at),    reinterpret_cast<float*>(base + scale_at),
                     reinterpret_cast<int64_t*>(base + slot_row_at), reinterpret_cast<float*>(base + slot_weight_at)};
    work->a = base + a_at;
    work->h = base + h_at;
    work->y = reinterpret_cast<float*>(base + y_at);
    return MOELAB_OK;
}

// Thread t of n takes [begin, end) of `count` equal pieces.
struct Share {
    int64_t begin, end;
    Share(int64_t count, int thread, int threads)
        : begin(count * thread / threads), end(count * (thread + 1) / threads) {}
};

// Cut at row tiles of each expert, as the GEMMs are: the order of rows within a tile belongs to the ISA.
void pack_rows(const Layout& layout, const moelab_call& call, const Work& work, const uint16_t* x, int thread,
               int threads) {
    const int64_t experts = layout.layer.num_experts;
    const auto tiles_of = [&](int64_t e) {
        return Tiles(work.routing.rows[e], layout.isa->geometry.mr, layout.isa->geometry.split);
    };
    int64_t tiles = 0;
    for (int64_t e = 0; e < experts; ++e) tiles += tiles_of(e).count();
    const Share share(tiles, thread, threads);
    int64_t start = 0;
    for (int64_t e = 0; e < experts && start < share.end; start += tiles_of(e).count(), ++e) {
        const Tiles cut = tiles_of(e);
        const int64_t begin = cut.row(share.begin > start ? share.begin - start : 0);
        const int64_t end = cut.row(share.end - start);
        if (begin >= end) continue;
        const int64_t first = work.routing.first[e] + begin;
        PackRows job{};
        job.x = x;
        job.x_stride = call.x_stride;
        job.token = work.routing.token + first;
        job.scale = call.router_weight_on_input ? work.routing.scale + first : nullptr;
        job.rows = end - begin;
        job.k = layout.layer.hidden;
        job.k_padded = layout.hidden_k;
        job.row0 = begin;
        job.expert_rows = work.routing.rows[e];
        job.a = work.a + first * work.a_row;
        layout.isa->pack_rows(job);
    }
}

void run_gemm1(const Layout& layout, const void* packed, const Work& work, const Partition& partition, int thread,
               int threads) {
    const moelab_layer& layer = layout.layer;
    partition.spans(thread, threads, [&](const Span& span) {
        const char* block = expert_block(layout, packed, span.expert);
        const int64_t first = work.routing.first[span.expert];
        Gemm1 job{};
        job.a = work.a + first * work.a_row;
        job.b = block;
        job.bias = layer.has_bias ? reinterpret_cast<const float*>(block + layout.b13_offset) : nullptr;
        job.rows = work.routing.rows[span.expert];
        job.row0 = span.row0;
        job.row1 = span.row1;
        job.panel0 = span.panel0;
        job.panel1 = span.panel1;
        job.k = layout.hidden_k;
        job.channels = layer.intermediate;
        job.h = work.h + first * work.h_row;
        job.h_k = layout.inter_k;
        job.act = {layer.activation, layer.alpha, layer.limit};
        job.core = &core_tuning();
        layout.isa->gemm1(job);
    });
}

void run_gemm2(const Layout& layout, const void* packed, const Work& work, const Partition& partition, int thread,
               int threads) {
    partition.spans(thread, threads, [&](const Span& span) {
        const char* block = expert_block(layout, packed, span.expert);
        const int64_t first = work.routing.first[span.expert];
        Gemm2 job{};
        job.a = work.h + first * work.h_row;
        job.b = block + layout.w2_offset;
        job.bias = layout.layer.has_bias ? reinterpret_cast<const float*>(block + layout.b2_offset) : nullptr;
        job.rows = work.routing.rows[span.expert];
        job.row0 = span.row0;
        job.row1 = span.row1;
        job.panel0 = span.panel0;
        job.panel1 = span.panel1;
        job.k = layout.inter_k;
        job.y = work.y + first * work.y_stride;
        job.y_stride = work.y_stride;
        job.core = &core_tuning();
        layout.isa->gemm2(job);
    });
}

void combine(const Layout& layout, const moelab_call& call, const Work& work, uint16_t* out, int64_t tokens, int thread,
             int threads) {
    const int64_t hidden = layout.layer.hidden;
    const int64_t blocks = (hidden + combine_columns - 1) / combine_columns;
    const Share share(tokens * blocks, thread, threads);
    for (int64_t piece = share.begin; piece < share.end; ++piece) {
        const int64_t token = piece / blocks, column = piece % blocks * combine_columns;
        Combine job{};
        job.y = work.y + column;
        job.y_stride = work.y_stride;
        job.row = work.routing.slot_row + token * call.topk;
        job.weight = work.routing.slot_weight + token * call.topk;
        job.slots = call.topk;
        job.n = hidden - column < combine_columns ? hidden - column : combine_columns;
        job.out = out + token * call.out_stride + column;
        layout.isa->combine(job);
    }
}

void run_chunk(const Layout& layout, const void* packed, const moelab_call& call, const Work& work, int64_t token0,
               int64_t token1) {
    PhaseClock clock(profiling());
    route(call, token0, token1, layout.layer.num_experts, layout.isa->geometry.ra, work.routing);
    clock.end(kRoute);
    mark_phase<0>();
    const int64_t experts = layout.layer.num_experts, tile = layout.isa->geometry.mr,
                  split = layout.isa->geometry.split;
    const Partition partition1(work.routing.rows, experts, layout.panels1, tile, split);
    const Partition partition2(work.routing.rows, experts, layout.panels2, tile, split);
    const uint16_t* x = call.x + token0 * call.x_stride;
    uint16_t* out = call.out + token0 * call.out_stride;
#pragma omp parallel num_threads(clamp_threads(call.num_threads))
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        pack_rows(layout, call, work, x, thread, threads);
        clock.arrive(kPack);
#pragma omp barrier
        if (thread == 0) clock.end(kPack);
        mark_phase<1>();
        run_gemm1(layout, packed, work, partition1, thread, threads);
        clock.arrive(kGemm1);
#pragma omp barrier
        if (thread == 0) clock.end(kGemm1);
        mark_phase<2>();
        run_gemm2(layout, packed, work, partition2, thread, threads);
        clock.arrive(kGemm2);
#pragma omp barrier
        if (thread == 0) clock.end(kGemm2);
        mark_phase<3>();
        combine(layout, call, work, out, token1 - token0, thread, threads);
        clock.arrive(kCombine);
    }
    clock.end(kCombine);
    clock.add_to(profile);
    mark_phase<4>();
}

moelab_status check_call(const moelab_call& call, const moelab_layer& layer) {
    if (call.tokens < 0)
        return fail(MOELAB_INVALID, "tokens: %lld; expected >= 0", static_cast<long long>(call.tokens));
    if (call.topk < 1 || call.topk > (int64_t{1} << 31))
        return fail(MOELAB_INVALID, "topk: %lld; expected >= 1", static_cast<long long>(call.topk));
    if (call.tokens == 0) return MOELAB_OK;
    if (!call.x || !call.topk_weights || !call.topk_ids || !call.out)
        return fail(MOELAB_INVALID, "%s: a null pointer",
                    !call.x              ? "x"
                    : !call.topk_weights ? "topk_weights"
                    : !call.topk_ids     ? "topk_ids"
                                         : "out");
    if (call.tokens > 1 && call.out_stride < layer.hidden)
        return fail(MOELAB_INVALID, "out: row stride %lld; rows of %lld elements would overlap",
                    static_cast<long long>(call.out_stride), static_cast<long long>(layer.hidden));
    return check_ids(call, layer.num_experts);
}

moelab_status check_expected(const moelab_layer& expected, const moelab_layer& found) {
    const auto differs = [](const char* name, long long want, long long have) {
        return fail(MOELAB_INVALID, "%s: %lld; the packed weights were made for %lld", name, want, have);
    };
    if (expected.num_experts != found.num_experts)
        return differs("num_experts", expected.num_experts, found.num_experts);
    if (expected.hidden != found.hidden) return differs("hidden", expected.hidden, found.hidden);
    if (expected.intermediate != found.intermediate)
        return differs("intermediate", expected.intermediate, found.intermediate);
    if (expected.activation != found.activation) return differs("activation", expected.activation, found.activation);
    return MOELAB_OK;
}

}  // namespace
}  // namespace moelab

using namespace moelab;

extern "C" moelab_status moelab_fused_moe(const void* packed, uint64_t bytes, const moelab_layer* expect,
                                          const moelab_call* call) {
    if (!call) return fail(MOELAB_INVALID, "call: a null pointer");
    Layout layout;
    moelab_status status = open_packed(packed, bytes, false, &layout);
    if (status == MOELAB_OK && expect) status = check_expected(*expect, layout.layer);
    if (status == MOELAB_OK) status = check_call(*call, layout.layer);
    if (status != MOELAB_OK) return status;
    for (double& phase : profile) phase = 0;
    if (call->tokens == 0) return MOELAB_OK;
    const int64_t chunk = chunk_tokens(layout, *call);
    Work work{};
    status = lay_out(layout, *call, chunk, &work);
    if (status != MOELAB_OK) return status;
    for (int64_t token = 0; token < call->tokens; token += chunk)
        run_chunk(layout, packed, *call, work, token, token + chunk < call->tokens ? token + chunk : call->tokens);
    return MOELAB_OK;
}

extern "C" void moelab_last_profile(double seconds[6]) {
    for (int i = 0; i <= kPhases; ++i) seconds[i] = profile[i];
}

extern "C" moelab_status moelab_partition_cost(const moelab_layer* layer, int32_t gemm, const int64_t* rows,
                                               int32_t threads, double* cost) {
    if (!layer || !rows || !cost) return fail(MOELAB_INVALID, "layer, rows, cost: a null pointer");
    if (gemm != 1 && gemm != 2) return fail(MOELAB_INVALID, "gemm: %d; expected 1 or 2", gemm);
    if (threads < 1) return fail(MOELAB_INVALID, "threads: %d; expected >= 1", threads);
    Layout layout;
    const moelab_status status = make_layout(*layer, &layout);
    if (status != MOELAB_OK) return status;
    const Partition partition(rows, layer->num_experts, gemm == 1 ? layout.panels1 : layout.panels2,
                              layout.isa->geometry.mr, layout.isa->geometry.split);
    for (int t = 0; t < threads; ++t) cost[t] = partition.cost(t, threads);
    return MOELAB_OK;
}

extern "C" moelab_status moelab_activate(int32_t isa, int32_t activation, float alpha, float limit, const float* gate,
                                         const float* up, uint16_t* out, int64_t n) {
    if (!gate || !up || !out) return fail(MOELAB_INVALID, "gate, up, out: a null pointer");
    if (n < 0) return fail(MOELAB_INVALID, "n: %lld; expected >= 0", static_cast<long long>(n));
    Layout layout;
    const moelab_status status = make_layout({isa, activation, 1, 1, 1, 0, alpha, limit}, &layout);
    if (status == MOELAB_OK) layout.isa->activate({activation, alpha, limit}, gate, up, out, n);
    return status;
}
