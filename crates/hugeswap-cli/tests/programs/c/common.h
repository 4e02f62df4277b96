// What the test programs share: content that can be verified, and pressure that pushes memory out.
//
// Every program verifies what it does and ends with status 1 after one line when something is wrong; what it
// prints on standard output must be the same with and without hugeswap. How often memory was found absent before
// it was used goes to standard error: "absent N".
#ifndef COMMON_H
#define COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define UNIT (2 * MIB)
#define PAGE ((size_t)4096)

#define CHECK(cond, ...)                                                                                             \
    do {                                                                                                             \
        if (!(cond)) {                                                                                               \
            int e_ = errno;                                                                                          \
            char m_[512];                                                                                            \
            int n_ = snprintf(m_, sizeof m_, "%s:%d: not so: %s: ", __FILE__, __LINE__, #cond);                      \
            n_ += snprintf(m_ + n_, sizeof m_ - n_, __VA_ARGS__);                                                    \
            n_ += snprintf(m_ + n_, sizeof m_ - n_, " (errno %d, pid %d)\n", e_, (int)getpid());                     \
            if (write(2, m_, n_) != n_)                                                                              \
                _exit(3);                                                                                            \
            _exit(1);                                                                                                \
        }                                                                                                            \
    } while (0)

// Word `i` of content `seed`; never zero.
static inline uint64_t value(size_t i, uint64_t seed) {
    return ((uint64_t)i ^ (seed << 40)) * 0x9e3779b97f4a7c15u | 1;
}

static inline void fill(void *p, size_t len, uint64_t seed) {
    uint64_t *w = p;
    size_t n = len / 8;
    for (size_t i = 0; i < n; i++)
        w[i] = value(i, seed);
    for (size_t i = n * 8; i < len; i++)
        ((uint8_t *)p)[i] = (uint8_t)(i + seed);
}

// Word `from` on of content `seed` stands at `p`.
static inline void verify_from(const void *p, size_t from, size_t len, uint64_t seed, const char *what) {
    const uint64_t *w = p;
    for (size_t i = 0; i < len / 8; i++)
        CHECK(w[i] == value(from + i, seed), "%s: word %zu at %p is %#lx, not %#lx", what, i, (void *)(w + i),
              (unsigned long)w[i], (unsigned long)value(from + i, seed));
}

static inline void verify(const void *p, size_t len, uint64_t seed, const char *what) {
    verify_from(p, 0, len, seed, what);
    for (size_t i = len & ~(size_t)7; i < len; i++)
        CHECK(((const uint8_t *)p)[i] == (uint8_t)(i + seed), "%s: byte %zu", what, i);
}

static inline void verify_zero(const void *p, size_t len, const char *what) {
    const uint8_t *b = p;
    for (size_t i = 0; i < len; i++)
        CHECK(b[i] == 0, "%s: byte %zu is %#x, not 0", what, i, b[i]);
}

// A checksum to print.
static inline uint64_t sum(const void *p, size_t len) {
    const uint64_t *w = p;
    uint64_t h = len;
    for (size_t i = 0; i < len / 8; i++)
        h = (h ^ w[i]) * 0x100000001b3u + (h >> 29);
    return h;
}

static char *ballast_;
static size_t ballast_len_;
static uint64_t ballast_seed_;
static unsigned long absent_;

// Memory larger than the budget; walking through it pushes out everything else.
static inline void ballast(size_t len) {
    ballast_ = malloc(len);
    CHECK(ballast_, "no ballast of %zu bytes", len);
    ballast_len_ = len;
    fill(ballast_, len, 7);
    ballast_seed_ = 7;
}

// Writes to every page of the ballast.
static inline void push_out(void) {
    for (size_t i = 0; i < ballast_len_; i += PAGE)
        ballast_[i] ^= 1;
}

static inline int pages_absent(const void *p, size_t len) {
    size_t from = (size_t)p & ~(PAGE - 1), to = ((size_t)p + len + PAGE - 1) & ~(PAGE - 1);
    size_t n = (to - from) / PAGE;
    unsigned char *v = malloc(n);
    int absent = 0;
    if (v && mincore((void *)from, to - from, v) == 0)
        for (size_t i = 0; i < n; i++)
            absent += !(v[i] & 1);
    free(v);
    return absent;
}

// Pushes `p` out: by asking for it, for whole units; else by walking through the ballast.
static inline void evict(void *p, size_t len) {
    size_t from = ((size_t)p + UNIT - 1) & ~(UNIT - 1), to = ((size_t)p + len) & ~(UNIT - 1);
    if (from < to)
        madvise((void *)from, to - from, 21 /* MADV_PAGEOUT */);
    for (int i = 0; i < 3 && ballast_ && !pages_absent(p, 1); i++)
        push_out();
    absent_ += pages_absent(p, len) > 0;
}

// Lines are there when they are written, however the program ends.
static inline void begin(void) { setvbuf(stdout, NULL, _IOLBF, 0); }

static inline void done(void) { fprintf(stderr, "absent %lu\n", absent_); }

#endif
