// Offsets beyond 2^31 elements and bytes, and prefills that are cut into chunks. Memory is mapped lazily or more
// than once, so that little of it is resident.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "layer_case.h"
#include "packed.h"

namespace {

bool is_scalar(int isa) {
    return std::string(moelab_isa_name(isa)) == "scalar";
}

struct Map {
    char* data;
    size_t bytes;
    explicit Map(size_t n) : bytes(n) {
        void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) SKIP("%zu bytes of address space cannot be mapped", n);
        data = static_cast<char*>(p);
    }
    Map(const Map&) = delete;
    Map& operator=(const Map&) = delete;
    ~Map() { munmap(data, bytes); }
};

}  // namespace

TEST_EACH_ISA(large, strides_beyond_2_31) {
    const Problem p = make_problem({3, 45, 24, 3, 2, MOELAB_SILU, true});
    const Packed packed = pack(p, isa);
    const Bits plain = run(p, packed);
    const int64_t stride = (int64_t{1} << 31) + 1000;  // elements
    const Map x(static_cast<size_t>(2 * stride + p.hidden) * 2), out(static_cast<size_t>(2 * stride + p.hidden) * 2);
    const Map weights(static_cast<size_t>(2 * stride + 2) * 4), ids(static_cast<size_t>(2 * stride + 2) * 8);
    for (int64_t t = 0; t < 3; t++) {
        std::copy_n(p.x.begin() + t * p.hidden, p.hidden, reinterpret_cast<uint16_t*>(x.data) + t * stride);
        std::copy_n(p.weights.begin() + t * 2, 2, reinterpret_cast<float*>(weights.data) + t * stride);
        std::copy_n(p.ids.begin() + t * 2, 2, reinterpret_cast<int64_t*>(ids.data) + t * stride);
    }
    moelab_call c = {};
    c.x = reinterpret_cast<uint16_t*>(x.data);
    c.topk_weights = reinterpret_cast<float*>(weights.data);
    c.topk_ids = ids.data;
    c.out = reinterpret_cast<uint16_t*>(out.data);
    c.x_stride = c.out_stride = c.weights_stride[0] = c.ids_stride[0] = stride;
    c.weights_stride[1] = c.ids_stride[1] = 1;
    c.tokens = 3;
    c.topk = 2;
    c.ids_are_int64 = 1;
    c.num_threads = 2;
    CHECK_STATUS(moelab_fused_moe(packed.data(), packed.bytes(), nullptr, &c), MOELAB_OK);
    Bits got;
    for (int64_t t = 0; t < 3; t++) got.insert(got.end(), c.out + t * stride, c.out + t * stride + p.hidden);
    check_same_bits(got, plain, p.hidden, "rows 2^31 elements apart");
}

TEST_EACH_ISA(large, weights_strides_beyond_2_31) {
    // Two columns of w2 far apart, packed from lazily mapped memory.
    const Problem p = make_problem({1, 5, 2, 3, 1, MOELAB_SILU, false});
    const Bits plain = run(p, pack(p, isa));
    const int64_t stride = (int64_t{1} << 31) + 7;
    const Map w2(static_cast<size_t>(stride + 5) * 2);
    for (int64_t r = 0; r < 5; r++)
        for (int64_t c = 0; c < 2; c++)
            reinterpret_cast<uint16_t*>(w2.data)[c * stride + r] = p.w2[static_cast<size_t>(r * 2 + c)];
    Packed packed;
    packed.layer = layer_of(p, isa);
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&packed.layer, &bytes), MOELAB_OK);
    packed.memory = Guarded(bytes, Guarded::kEnd, 64);
    CHECK_STATUS(moelab_pack_begin(&packed.layer, packed.memory.data(), bytes), MOELAB_OK);
    const moelab_matrix m13 = {p.w13.data(), MOELAB_BF16, 5, 1}, m2 = {w2.data, MOELAB_BF16, 1, stride};
    CHECK_STATUS(moelab_pack_expert(packed.memory.data(), bytes, 0, &m13, &m2, nullptr, nullptr, 0, 1), MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(packed.memory.data(), bytes), MOELAB_OK);
    check_same_bits(run(p, packed), plain, 5, "columns 2^31 elements apart");
}

TEST_EACH_ISA(large, prefill_in_chunks) {
    // Scratch is bounded: this many tokens are computed in several chunks, and no token may notice.
    if (testing::quick() || (is_scalar(isa) && !testing::slow())) SKIP("takes too long here");
    const Problem p = make_problem({2, 4096, 16, 13000, 2, MOELAB_SILU, true});
    const Packed packed = pack(p, isa);
    const Bits out = run(p, packed);
    check(expected_of(p, "large prefill", 12), out, p.hidden, Gate::kStatistics);
    for (int64_t t = 0; t < p.tokens; t += 97) {
        const Bits alone = run(batch_of(p, {t}), packed);
        CHECK(std::equal(alone.begin(), alone.end(), out.begin() + t * p.hidden), "token %ld differs alone",
              static_cast<long>(t));
    }
}

TEST_EACH_ISA(large, prefill_of_65536_tokens) {
    if (testing::quick()) SKIP("takes too long here");
    const Problem p = make_problem({4, 24, 8, 65536, 2, MOELAB_GELU, true});
    const Packed packed = pack(p, isa);
    const Bits out = run(p, packed);
    check(expected_of(p, "65536 tokens", 500), out, p.hidden, Gate::kStatistics);
    std::vector<int64_t> last;
    for (int64_t t = p.tokens - 300; t < p.tokens; t++) last.push_back(t);
    check_same_bits(run(batch_of(p, last), packed), Bits(out.end() - 300 * p.hidden, out.end()), p.hidden,
                    "the last tokens");
}

TEST_EACH_ISA(large, packed_weights_beyond_4_gib) {
    if (testing::quick() || (is_scalar(isa) && !testing::slow())) SKIP("packs six GiB");
    // 1024 experts whose blocks share the physical pages of two; a truncated offset lands inside another block.
    const int64_t experts = 1024;
    Problem p = make_problem({1, 1024, 1024, 4, 1, MOELAB_SILU, false});
    const Bits plain = run(p, pack(p, isa));
    moelab_layer one = layer_of(p, isa), all = one;
    all.num_experts = experts;
    uint64_t one_bytes, bytes;
    CHECK_STATUS(moelab_packed_bytes(&one, &one_bytes), MOELAB_OK);
    CHECK_STATUS(moelab_packed_bytes(&all, &bytes), MOELAB_OK);
    const uint64_t block = one_bytes - 4096, first = bytes - block * static_cast<uint64_t>(experts);
    if (block % 4096) SKIP("blocks of %lu bytes do not fill pages", static_cast<unsigned long>(block));
    CHECK(bytes > uint64_t{1} << 32, "only %lu bytes", static_cast<unsigned long>(bytes));
    const Map map(bytes);
    const int file = memfd_create("moelab_tests", 0);
    CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(block)) == 0, "no memory file");
    for (int64_t e = 0; e < experts; e++)
        CHECK(mmap(map.data + first + static_cast<uint64_t>(e) * block, block, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED,
              "expert %ld cannot be mapped", static_cast<long>(e));
    close(file);
    CHECK_STATUS(moelab_pack_begin(&all, map.data, bytes), MOELAB_OK);
    const moelab_matrix w13 = {p.w13.data(), MOELAB_BF16, 1024, 1}, w2 = {p.w2.data(), MOELAB_BF16, 1024, 1};
    for (int64_t e = 0; e < experts; e++)
        CHECK_STATUS(moelab_pack_expert(map.data, bytes, e, &w13, &w2, nullptr, nullptr, 0, 2), MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(map.data, bytes), MOELAB_OK);
    Bits out(p.x.size());
    moelab_call c = {};
    c.x = p.x.data();
    c.x_stride = c.out_stride = p.hidden;
    c.tokens = p.tokens;
    c.topk = 1;
    c.topk_weights = p.weights.data();
    c.weights_stride[0] = c.ids_stride[0] = 1;
    c.out = out.data();
    for (const int32_t id : {0, 341, 342, 682, 683, 1023}) {
        const std::vector<int32_t> ids(4, id);
        c.topk_ids = ids.data();
        CHECK_STATUS(moelab_fused_moe(map.data, bytes, &all, &c), MOELAB_OK);
        check_same_bits(out, plain, p.hidden, testing::format("expert %d", id).c_str());
    }
}

TEST_EACH_ISA(large, one_expert_beyond_4_gib) {
    if (testing::quick() || (is_scalar(isa) && !testing::slow())) SKIP("packs six GiB");
    // More than 2^31 weights in one matrix. All rows of w13 are the same one, and so are all rows of w2: every panel
    // has the same bytes, and all panels of a matrix share the physical pages of one. w2 is zero but for the last
    // channels, so that the outputs are, bit for bit, those of a layer that has only these.
    constexpr int64_t kSize = 33280, kChannels = 128;  // both multiples of every panel and every step of k
    Problem small = make_problem({1, kSize, kChannels, 2, 1, MOELAB_SILU, false});
    for (int64_t r = 1; r < 2 * kChannels; r++) std::copy_n(small.w13.begin(), kSize, small.w13.begin() + r * kSize);
    for (int64_t r = 1; r < kSize; r++) std::copy_n(small.w2.begin(), kChannels, small.w2.begin() + r * kChannels);
    const Bits want = run(small, pack(small, isa));

    moelab_layer layer = layer_of(small, isa);
    layer.intermediate = kSize;
    moelab::Layout layout;
    CHECK_STATUS(moelab::make_layout(layer, &layout), MOELAB_OK);
    CHECK(layout.panels1 * layout.panel1_bytes > int64_t{1} << 32, "w13 has only %ld bytes",
          static_cast<long>(layout.panels1 * layout.panel1_bytes));
    const Map map(static_cast<size_t>(layout.total_bytes));
    const auto share = [&](int64_t offset, int64_t panels, int64_t bytes) {
        CHECK(bytes % 4096 == 0 && offset % 4096 == 0, "panels of %ld bytes at %ld do not fill pages",
              static_cast<long>(bytes), static_cast<long>(offset));
        const int file = memfd_create("moelab_tests", 0);
        CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "no memory file");
        for (int64_t p = 0; p < panels; p++)
            CHECK(mmap(map.data + offset + p * bytes, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED,
                  "panel %ld cannot be mapped", static_cast<long>(p));
        close(file);
    };
    share(layout.first_expert, layout.panels1, layout.panel1_bytes);
    share(layout.first_expert + layout.w2_offset, layout.panels2, layout.panel2_bytes);
    Bits row2(static_cast<size_t>(kSize), 0);
    std::copy_n(small.w2.begin(), kChannels, row2.end() - kChannels);
    const uint64_t bytes = static_cast<uint64_t>(layout.total_bytes);
    const moelab_matrix w13 = {small.w13.data(), MOELAB_BF16, 0, 1}, w2 = {row2.data(), MOELAB_BF16, 0, 1};
    CHECK_STATUS(moelab_pack_begin(&layer, map.data, bytes), MOELAB_OK);
    // One thread, so that the last panels are written last: nothing writes over them if they land elsewhere.
    CHECK_STATUS(moelab_pack_expert(map.data, bytes, 0, &w13, &w2, nullptr, nullptr, 0, 1), MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(map.data, bytes), MOELAB_OK);
    Bits out(want.size());
    moelab_call c = plain_call(small, out.data());
    c.num_threads = 2;
    CHECK_STATUS(moelab_fused_moe(map.data, bytes, &layer, &c), MOELAB_OK);
    check_same_bits(out, want, kSize, "the last channels of a large expert");
}
