/* Counts the instructions that an emulated 64-bit Arm program retires, by class: a plugin for QEMU's user mode.
 *
 *     cc -O2 -shared -fPIC -o armmix.so armmix.c
 *     qemu-aarch64 -plugin ./armmix.so,out=counts.txt[,blocks=on] PROGRAM
 *
 * One counter per translated block, counted inline: about 2 % slower than without, and exact for one thread (QEMU's
 * inline counters race between threads). The guest executes HINT #0x70..0x7f to mark the end of a phase; a line
 *
 *     mark 71 total=1234 bfmmla=567 ...
 *
 * then holds what was retired since the last mark. With the option blocks=on, lines "block ADDRESS total=..." after it
 * tell where: one for each translated block that ran, by its address. Classes are opcode masks out of the architecture's encoding index:
 * capstone 4, which QEMU brings, does not know BFMMLA.
 *
 * Plugin API version 1. Debian packages no qemu-plugin.h, so the few prototypes are declared here.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct qemu_info_t qemu_info_t;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int add, void *counter, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int flags, void *);
EXPORTED int qemu_plugin_version = 1;

/* clang-format off */
enum { BFMMLA, BFDOT, BFMLAL, I8MM, DOT, FMLA, FARITH, BFCVT, PERMUTE, VLOAD, VSTORE, LOAD, STORE, ATOMIC, PREFETCH,
       BRANCH, SYSTEM, ALU, SIMD, SVE_BFMMLA, SVE_LOAD, SVE, SME, OTHER, CLASSES };
static const char *const names[CLASSES] = {
    "bfmmla", "bfdot", "bfmlal", "i8mm_mmla", "sdot_udot", "fmla_fmls", "fadd_fmul_etc", "bfcvt", "permute",
    "simd_load", "simd_store", "load", "store", "atomic_excl", "prefetch", "branch", "system", "int_alu",
    "other_simd_fp", "sve_bfmmla", "sve_load", "sve", "sme", "other" };
/* clang-format on */

static int is(uint32_t word, uint32_t mask, uint32_t value) {
    return (word & mask) == value;
}

static int class_of_memory_access(uint32_t w) {
    const int vector = w >> 26 & 1, load = w >> 22 & 1;
    if (is(w, 0x3f000000, 0x08000000)) return ATOMIC;                  /* exclusives, CAS */
    if (is(w, 0xbe000000, 0x0c000000)) return load ? VLOAD : VSTORE;   /* ld1 .. st4 */
    if (is(w, 0x3b000000, 0x18000000)) return vector ? VLOAD : (w >> 30 == 3 ? PREFETCH : LOAD); /* literals */
    if (is(w, 0x3a000000, 0x28000000)) return vector ? (load ? VLOAD : VSTORE) : (load ? LOAD : STORE); /* pairs */
    if (is(w, 0x3a000000, 0x38000000)) {                               /* one register */
        if (!vector && is(w, 0x3b200c00, 0x38200000)) return ATOMIC;   /* LSE */
        if (vector) return load ? VLOAD : VSTORE;
        if (is(w, 0xc0c00000, 0xc0800000)) return PREFETCH;
        return (w >> 22 & 3) ? LOAD : STORE;
    }
    return OTHER;
}

static int class_of_simd(uint32_t w) {
    if (is(w, 0xffe0fc00, 0x6e40ec00)) return BFMMLA;
    if (is(w, 0xbfe0fc00, 0x2e40fc00) || is(w, 0xbfc0f400, 0x0f40f000)) return BFDOT;
    if (is(w, 0xbfe0fc00, 0x2ec0fc00) || is(w, 0xbfc0f400, 0x0fc0f000)) return BFMLAL;
    if (is(w, 0xdfe0f400, 0x4e80a400)) return I8MM; /* smmla ummla usmmla */
    if (is(w, 0x9fe0fc00, 0x0e809400) || is(w, 0x9f00f400, 0x0f00e000)) return DOT;
    if (is(w, 0xbf20fc00, 0x0e20cc00) || is(w, 0xbf80b400, 0x0f801000)) return FMLA; /* vector, by element */
    if (is(w, 0xbffffc00, 0x0ea16800) || is(w, 0xfffffc00, 0x1e634000)) return BFCVT;
    if (is(w, 0xbf208c00, 0x0e000800) || is(w, 0xbf208c00, 0x0e000000) || is(w, 0xbf208400, 0x2e000000))
        return PERMUTE; /* zip uzp trn, tbl, ext */
    if (is(w, 0x9f20c400, 0x0e20c400) || is(w, 0xff200c00, 0x1e200800) || is(w, 0xff000000, 0x1f000000)) return FARITH;
    return SIMD;
}

static int class_of(uint32_t w) {
    const unsigned group = w >> 25 & 15;
    if (group == 0) return w >> 31 ? SME : OTHER;
    if (group == 2) {
        if (is(w, 0xffe0fc00, 0x6460e400)) return SVE_BFMMLA;
        return is(w, 0xfe000000, 0xa4000000) || is(w, 0xfe000000, 0x84000000) ? SVE_LOAD : SVE;
    }
    if ((group & 14) == 8) return ALU; /* immediate */
    if ((group & 14) == 10) return is(w, 0xffc00000, 0xd5000000) ? SYSTEM : BRANCH;
    if ((group & 7) == 5) return ALU; /* register */
    if ((group & 5) == 4) return class_of_memory_access(w);
    return class_of_simd(w);
}

struct block {
    struct block *next;
    uint64_t address;
    uint64_t executed, executed_at_last_mark;
    uint16_t count[CLASSES];
};
static struct block *blocks;
static uint64_t at_last_mark[CLASSES];
static FILE *out;
static int print_blocks;

static void totals(uint64_t *total) {
    memset(total, 0, CLASSES * sizeof *total);
    for (const struct block *b = blocks; b; b = b->next)
        for (int i = 0; i < CLASSES; i++) total[i] += b->executed * b->count[i];
}

static void print_line(const char *tag, const uint64_t *count) {
    uint64_t sum = 0;
    for (int i = 0; i < CLASSES; i++) sum += count[i];
    fprintf(out, "%s total=%" PRIu64, tag, sum);
    for (int i = 0; i < CLASSES; i++)
        if (count[i]) fprintf(out, " %s=%" PRIu64, names[i], count[i]);
    fputc('\n', out);
    fflush(out);
}

static void on_mark(unsigned cpu, void *number) {
    (void)cpu;
    uint64_t now[CLASSES], since[CLASSES];
    totals(now);
    for (int i = 0; i < CLASSES; i++) since[i] = now[i] - at_last_mark[i];
    memcpy(at_last_mark, now, sizeof now);
    char tag[16];
    snprintf(tag, sizeof tag, "mark %x", (unsigned)(uintptr_t)number);
    print_line(tag, since);
    for (struct block *b = blocks; b; b = b->next) {
        const uint64_t times = b->executed - b->executed_at_last_mark;
        b->executed_at_last_mark = b->executed;
        if (!print_blocks || times == 0) continue;
        for (int i = 0; i < CLASSES; i++) since[i] = times * b->count[i];
        char block[32];
        snprintf(block, sizeof block, "block %" PRIx64, b->address);
        print_line(block, since);
    }
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *tb) {
    (void)id;
    struct block *b = calloc(1, sizeof *b);
    if (!b) abort();
    b->next = blocks;
    blocks = b;
    b->address = qemu_plugin_tb_vaddr(tb);
    const size_t n = qemu_plugin_tb_n_insns(tb);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint32_t word;
        memcpy(&word, qemu_plugin_insn_data(insn), sizeof word);
        b->count[class_of(word)]++;
        if (is(word, 0xfffffe1f, 0xd5032e1f)) /* HINT #0x70..0x7f */
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, 0, (void *)(uintptr_t)(word >> 5 & 0x7f));
    }
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &b->executed, 1);
}

static void at_exit(plugin_id id, void *unused) {
    (void)id;
    (void)unused;
    uint64_t now[CLASSES];
    totals(now);
    print_line("all", now);
}

EXPORTED int qemu_plugin_install(plugin_id id, const qemu_info_t *info, int argc, char **argv) {
    (void)info;
    out = stderr;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0) out = fopen(argv[i] + 4, "w");
        if (strcmp(argv[i], "blocks=on") == 0) print_blocks = 1;
    }
    if (!out) {
        perror("armmix: out=");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}
