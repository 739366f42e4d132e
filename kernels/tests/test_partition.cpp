// The division of work is a pure function: it covers everything once and is even wherever even pieces exist.
#include <algorithm>
#include <cmath>

#include "layer_case.h"
#include "packed.h"
#include "partition.h"

namespace {

struct Model {
    const char* name;
    int64_t experts, topk, hidden, intermediate;
};
constexpr Model kModels[] = {{"gpt-oss-20b", 32, 4, 2880, 2880},     {"gpt-oss-120b", 128, 4, 2880, 2880},
                             {"gemma-4-26b-a4b", 128, 8, 2816, 704}, {"qwen3-30b-a3b", 128, 8, 2048, 768},
                             {"mixtral-8x7b", 8, 2, 4096, 14336},    {"deepseek-v2-lite", 64, 6, 2048, 1408}};

enum Routing { kUniform, kSkewed, kOneHot, kEqual, kRoutings };

std::vector<int64_t> route(const Model& m, int64_t tokens, int routing) {
    Random random(17);
    std::vector<int64_t> rows(static_cast<size_t>(m.experts), 0);
    if (routing == kEqual) {
        // As many experts as there are slots, each with the same number of rows.
        const int64_t active = std::min(m.experts, tokens * m.topk);
        for (int64_t e = 0; e < active; e++)
            rows[static_cast<size_t>(e)] = std::max<int64_t>(1, tokens * m.topk / m.experts);
        return rows;
    }
    for (int64_t n = 0; n < tokens * m.topk; n++) {
        int64_t e = random.below(m.experts);
        if (routing == kSkewed)
            e = static_cast<int64_t>(std::pow(static_cast<double>(m.experts), random.uniform())) - 1;
        if (routing == kOneHot) e = n % m.topk;
        rows[static_cast<size_t>(std::min(e, m.experts - 1))]++;
    }
    return rows;
}

std::vector<double> cost_of(const moelab_layer& layer, int gemm, const std::vector<int64_t>& rows, int threads) {
    std::vector<double> cost(static_cast<size_t>(threads));
    CHECK_STATUS(moelab_partition_cost(&layer, gemm, rows.data(), threads, cost.data()), MOELAB_OK);
    return cost;
}

// What cannot be divided: one panel of weights by one tile of rows.
struct Pieces {
    double count = 0, largest = 0;
    bool equal = true;
};

Pieces pieces_of(const moelab_layer& layer, int gemm, const std::vector<int64_t>& rows) {
    moelab::Layout layout;
    CHECK_STATUS(moelab::make_layout(layer, &layout), MOELAB_OK);
    const int64_t panels = gemm == 1 ? layout.panels1 : layout.panels2, tile = layout.isa->geometry.mr;
    Pieces all;
    double first = 0;
    for (const int64_t r : rows) {
        if (r == 0) continue;
        moelab_layer alone = layer;
        alone.num_experts = 1;
        const double count = static_cast<double>(panels * ((r + tile - 1) / tile));
        const double piece = cost_of(alone, gemm, {r}, 1)[0] / count;
        if (all.count == 0) first = piece;
        all.equal = all.equal && piece == first;
        all.largest = std::max(all.largest, piece);
        all.count += count;
    }
    return all;
}

}  // namespace

TEST_EACH_ISA(partition, even_for_1_to_192_threads) {
    int64_t judged = 0;
    for (const Model& m : kModels)
        for (const int64_t tokens : {1, 4, 16, 64, 256, 1024, 4096})
            for (int routing = 0; routing < kRoutings; routing++)
                for (int gemm = 1; gemm <= 2; gemm++) {
                    const moelab_layer layer = {isa, MOELAB_SILU, m.experts, m.hidden, m.intermediate, 0, 0, 0};
                    const std::vector<int64_t> rows = route(m, tokens, routing);
                    const Pieces pieces = pieces_of(layer, gemm, rows);
                    const double total = cost_of(layer, gemm, rows, 1)[0];
                    for (int threads = 1; threads <= 192; threads += testing::quick() ? 13 : 1) {
                        const double mean = total / threads;
                        // Even pieces exist where equal pieces divide well, or where each thread has 20 of them.
                        const double best = std::ceil(pieces.count / threads) * threads / pieces.count;
                        if (!(mean >= 20 * pieces.largest || (pieces.equal && best <= 1.05))) continue;
                        const std::vector<double> cost = cost_of(layer, gemm, rows, threads);
                        const double most = *std::max_element(cost.begin(), cost.end());
                        double sum = 0;
                        for (const double c : cost) sum += c;
                        CHECK(std::fabs(sum - total) <= 1e-9 * total, "%s: the shares add up to %g of %g", m.name, sum,
                              total);
                        CHECK(most <= 1.05 * mean,
                              "%s, tokens %ld, routing %d, GEMM%d, %d threads: most / mean is %.3f", m.name,
                              static_cast<long>(tokens), routing, gemm, threads, most / mean);
                        judged++;
                    }
                }
    // Coarse pieces must not let the condition above excuse everything.
    CHECK(judged > (testing::quick() ? 3000 : 40000), "only %ld cases have even pieces", static_cast<long>(judged));
}

TEST_EACH_ISA(partition, many_threads_get_work_from_one_token) {
    const Model& m = kModels[0];
    const moelab_layer layer = {isa, MOELAB_SWIGLUOAI, m.experts, m.hidden, m.intermediate, 1, 1.7f, 7};
    for (int gemm = 1; gemm <= 2; gemm++) {
        const std::vector<double> cost = cost_of(layer, gemm, route(m, 1, kEqual), 64);
        for (const double c : cost) CHECK(c > 0, "a thread of 64 has nothing to do");
    }
}

TEST(partition, every_cell_exactly_once) {
    Random random(4);
    for (int n = 0; n < (testing::quick() ? 150 : 1500); n++) {
        const int64_t experts = 1 + random.below(6), panels = 1 + random.below(12), tile = 1 + random.below(12);
        std::vector<int64_t> rows;
        for (int64_t e = 0; e < experts; e++) rows.push_back(random.below(3) ? random.below(60) : 0);
        const moelab::Partition partition(rows.data(), experts, panels, tile);
        const int threads = static_cast<int>(1 + random.below(70));
        std::vector<std::vector<int>> seen;
        for (const int64_t r : rows) seen.emplace_back(static_cast<size_t>(r * panels), 0);
        for (int t = 0; t < threads; t++) {
            std::vector<int> spans(static_cast<size_t>(experts), 0);
            bool any = false;
            partition.spans(t, threads, [&](const moelab::Span& s) {
                any = true;
                CHECK(s.expert >= 0 && s.expert < experts && s.panel0 >= 0 && s.panel0 < s.panel1 &&
                          s.panel1 <= panels && s.row0 >= 0 && s.row0 < s.row1 &&
                          s.row1 <= rows[static_cast<size_t>(s.expert)],
                      "a span outside its expert");
                CHECK(s.row0 % tile == 0, "a span starts within a tile");
                CHECK(s.row1 % tile == 0 || s.row1 == rows[static_cast<size_t>(s.expert)], "a span ends within a tile");
                CHECK(++spans[static_cast<size_t>(s.expert)] <= 3, "more than three spans of one expert");
                for (int64_t p = s.panel0; p < s.panel1; p++)
                    for (int64_t r = s.row0; r < s.row1; r++)
                        seen[static_cast<size_t>(s.expert)]
                            [static_cast<size_t>(p * rows[static_cast<size_t>(s.expert)] + r)]++;
            });
            CHECK(any == (partition.cost(t, threads) > 0), "thread %d of %d: work and cost disagree", t, threads);
        }
        for (const auto& expert : seen)
            for (const int times : expert) CHECK(times == 1, "a cell is computed %d times", times);
    }
}

TEST(partition, multiplications_are_even_where_they_bind) {
    // Many rows everywhere: what a thread takes is its multiplications, counted here from the spans themselves.
    Random random(8);
    std::vector<int64_t> rows;
    for (int e = 0; e < 32; e++) rows.push_back(100 + random.below(900));
    const int64_t panels = 180;
    const moelab::Partition partition(rows.data(), 32, panels, 12);
    double total = 0;
    for (const int64_t r : rows) total += static_cast<double>(r * panels);
    for (int threads = 1; threads <= 192; threads++) {
        double most = 0;
        for (int t = 0; t < threads; t++) {
            double mine = 0;
            partition.spans(t, threads, [&](const moelab::Span& s) {
                mine += static_cast<double>((s.row1 - s.row0) * (s.panel1 - s.panel0));
            });
            most = std::max(most, mine);
        }
        CHECK(most <= 1.05 * total / threads, "%d threads: most / mean is %.3f", threads, most * threads / total);
    }
}

TEST(partition, no_overflow_on_the_largest_layers) {
    // 2^27 tokens, top-8, 512 experts of 16384 x 65536, 1024 threads: total cost times threads is beyond 2^63.
    std::vector<int64_t> rows(512, int64_t{1} << 21);
    rows[3] = int64_t{1} << 24;
    const moelab::Partition partition(rows.data(), 512, 65536 / 4, 1);
    double total = 0;
    for (int t = 0; t < 1024; t++) {
        const double c = partition.cost(t, 1024);
        CHECK(c > 0, "thread %d: cost %g", t, c);
        total += c;
    }
    CHECK(partition.cost(0, 1) == total, "%g and %g", partition.cost(0, 1), total);
}
