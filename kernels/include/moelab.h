// The C interface of the moelab kernels: no C++, no Python, no torch.
//
// One fused Mixture-of-Experts layer:
//
//     out[t] = sum over slots s of  weight[t,s] * W2[e] * act(W13[e] * x[t] + b13[e]) + b2[e],   e = id[t,s]
//
// BF16 in and out, fp32 accumulation. Every function that can fail returns a moelab_status and
// leaves a sentence for the calling thread in moelab_last_error(). No function writes to its inputs.
#ifndef MOELAB_H
#define MOELAB_H

#include <stdint.h>

#if defined(_WIN32)
#error "moelab supports Linux"
#endif
#define MOELAB_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Raised whenever a struct or a function below changes its meaning.
#define MOELAB_ABI_VERSION 1
MOELAB_API int32_t moelab_abi_version(void);

typedef enum {
    MOELAB_OK = 0,
    MOELAB_INVALID = 1,      // an argument is wrong: ValueError
    MOELAB_NO_MEMORY = 2,    // MemoryError
    MOELAB_UNSUPPORTED = 3,  // this CPU or build cannot: RuntimeError
    MOELAB_CORRUPT = 4,      // packed weights are damaged or mixed up: ValueError
} moelab_status;

// The last failure of the calling thread: names the argument, its value and what would be right.
MOELAB_API const char* moelab_last_error(void);

// ---- instruction sets -------------------------------------------------------------------------
// The registry, weakest first. `missing` is "" where the ISA can run, otherwise what this CPU (or
// MOELAB_CPU_MASK) lacks. MOELAB_ISA=name limits moelab_isa_best to that one.
MOELAB_API int32_t moelab_isa_count(void);
MOELAB_API const char* moelab_isa_name(int32_t isa);  // NULL outside [0, count)
MOELAB_API const char* moelab_isa_missing(int32_t isa);
MOELAB_API moelab_status moelab_isa_best(int32_t* isa);  // UNSUPPORTED if MOELAB_ISA names one that cannot run
MOELAB_API moelab_status moelab_isa_find(const char* name, int32_t* isa);  // UNSUPPORTED if it cannot run

// JSON object: version, git commit, compiler, flags, ISAs built, CPU features seen.
MOELAB_API const char* moelab_build_info(void);

// ---- layers and packed weights ------------------------------------------------------------------
typedef enum {
    MOELAB_SILU = 0,       // silu(gate) * up
    MOELAB_GELU = 1,       // gelu(gate) * up, with erf
    MOELAB_GELU_TANH = 2,  // the tanh approximation
    MOELAB_SWIGLUOAI = 3,  // g = min(gate, limit), u = clamp(up, -limit, limit): g * sigmoid(alpha g) * (u + 1)
} moelab_activation;

typedef enum { MOELAB_BF16 = 0, MOELAB_FP16 = 1, MOELAB_FP32 = 2 } moelab_dtype;

typedef struct {
    int32_t isa;         // index into the registry; decides the packed layout
    int32_t activation;  // moelab_activation
    int64_t num_experts, hidden, intermediate;
    int32_t has_bias;
    float alpha, limit;  // swigluoai only
} moelab_layer;

// A matrix of any strides, in elements. data == NULL means absent (biases).
typedef struct {
    const void* data;
    int32_t dtype;  // moelab_dtype
    int64_t row_stride, col_stride;
} moelab_matrix;

// Memory on 2 MiB boundaries with transparent huge pages asked for (madvise); NULL when there is none.
MOELAB_API void* moelab_alloc(uint64_t bytes);
MOELAB_API void moelab_free(void* memory, uint64_t bytes);

MOELAB_API moelab_status moelab_packed_bytes(const moelab_layer* layer, uint64_t* bytes);

// begin -> pack_expert for every expert, in any order -> finish. `packed` holds packed_bytes bytes,
// 64-byte aligned. pack_expert may run on several threads for different experts.
//   w13 [2I, H]: gate rows then up rows, or interleaved != 0: even rows gate, odd rows up. w2 [H, I].
//   b13 [2I] in the order of w13's rows, b2 [H]: both or neither, as layer->has_bias says (row_stride counts).
// fp32 and fp16 weights are rounded to BF16 once, to nearest even; biases are kept in fp32.
MOELAB_API moelab_status moelab_pack_begin(const moelab_layer* layer, void* packed, uint64_t bytes);
MOELAB_API moelab_status moelab_pack_expert(void* packed, uint64_t bytes, int64_t expert, const moelab_matrix* w13,
                                            const moelab_matrix* w2, const moelab_matrix* b13, const moelab_matrix* b2,
                                            int32_t interleaved, int32_t num_threads);
MOELAB_API moelab_status moelab_pack_finish(void* packed, uint64_t bytes);  // INVALID if an expert is missing

// Reads the header only (cheap), or with verify != 0 every byte against its checksum.
MOELAB_API moelab_status moelab_packed_layer(const void* packed, uint64_t bytes, int32_t verify, moelab_layer* layer);

// The exact inverse of packing, as BF16 bits: w13 [2I, H] with its rows in the order they were packed from,
// w2 [H, I], b13 [2I] (in w13's order) and b2 [H] as fp32 (both may be NULL).
MOELAB_API moelab_status moelab_unpack_expert(const void* packed, uint64_t bytes, int64_t expert, uint16_t* w13,
                                              uint16_t* w2, float* b13, float* b2);

// ---- the fused layer ------------------------------------------------------------------------------
typedef struct {
    const uint16_t* x;  // [tokens, H] BF16, unit column stride
    int64_t x_stride;   // elements between rows
    int64_t tokens, topk;
    const float* topk_weights;  // [tokens, topk]
    int64_t weights_stride[2];
    const void* topk_ids;  // [tokens, topk]; -1 skips the slot, others must lie in [0, E)
    int32_t ids_are_int64;
    int64_t ids_stride[2];
    uint16_t* out;  // [tokens, H] BF16, unit column stride, fully overwritten
    int64_t out_stride;
    int32_t router_weight_on_input;  // rounds x * w to BF16 before GEMM1 instead of weighting the output
    int32_t num_threads;             // <= 0: the OpenMP setting of the calling thread
} moelab_call;

// `expect` (may be NULL) must agree with the header of `packed`: the guard of callers that keep the
// geometry elsewhere. Safe to call from several threads at once.
MOELAB_API moelab_status moelab_fused_moe(const void* packed, uint64_t bytes, const moelab_layer* expect,
                                          const moelab_call* call);

// Seconds of the calling thread's last moelab_fused_moe: how long a thread was busy, in the mean, with route, pack
// rows, GEMM1, GEMM2 and combine, and how long it waited for the others. Filled only while MOELAB_PROFILE=1.
MOELAB_API void moelab_last_profile(double seconds[6]);

// ---- measurement and test hooks -------------------------------------------------------------------
typedef enum { MOELAB_PEAK_BF16 = 0, MOELAB_PEAK_FP32 = 1, MOELAB_PEAK_READ = 2 } moelab_peak_kind;

// FLOP/s of the ISA's own multiply instruction, or bytes/s of the best of several read patterns over a
// buffer on huge pages that is kept between calls. isa < 0: the best one.
MOELAB_API moelab_status moelab_peak(int32_t kind, int32_t isa, int32_t num_threads, double seconds, double* rate);

// The epilogue alone: out[i] = bf16(act(gate[i]) * up[i]).
MOELAB_API moelab_status moelab_activate(int32_t isa, int32_t activation, float alpha, float limit, const float* gate,
                                         const float* up, uint16_t* out, int64_t n);

// How the two GEMMs would be cut: cost[threads] of each thread's share in arbitrary units, for `rows`
// [num_experts] rows per expert. gemm is 1 or 2. Pure: runs no kernel.
MOELAB_API moelab_status moelab_partition_cost(const moelab_layer* layer, int32_t gemm, const int64_t* rows,
                                               int32_t threads, double* cost);

#ifdef __cplusplus
}
#endif
#endif
