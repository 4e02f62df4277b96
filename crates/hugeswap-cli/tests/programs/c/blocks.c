// A storm of blocks from whatever allocator the process has: sizes from bytes to megabytes, by every way to ask, from several
// threads, some freed by another thread than asked for them, with forks meanwhile whose children go on.
// blocks THREADS ROUNDS: what it holds at a time is about 30 MiB a thread.
#include "common.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>

enum { HELD = 400, POSTED = 64 };

typedef struct {
    void *at;
    size_t len;
    uint64_t seed;
} Block;

static Block posted[POSTED];
static pthread_mutex_t post = PTHREAD_MUTEX_INITIALIZER;
static unsigned rounds;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

// Mostly small, some pages, few megabytes.
static size_t draw_length(uint64_t *state) {
    uint64_t r = next(state);
    switch (r % 64) {
    case 0:
        return 1 * MIB + (r >> 8) % (3 * MIB);
    case 1 ... 3:
        return 100 * KIB + (r >> 8) % (400 * KIB);
    case 4 ... 15:
        return 4 * KIB + (r >> 8) % (30 * KIB);
    default:
        return 1 + (r >> 8) % 2000;
    }
}

static Block ask(uint64_t *state) {
    Block b = {NULL, draw_length(state), next(state)};
    // (mimalloc 2.0 gives less than what was asked for beyond this, of small blocks.)
    size_t align = (size_t)16 << b.seed % 3;
    switch (next(state) % 6) {
    case 0:
        b.at = calloc(1, b.len);
        if (b.at)
            verify_zero(b.at, b.len, "calloc");
        break;
    case 1:
        CHECK(posix_memalign(&b.at, align, b.len) == 0, "posix_memalign");
        CHECK((uintptr_t)b.at % align == 0, "not aligned to %zu", align);
        break;
    case 2:
        b.len = (b.len + align - 1) & ~(align - 1);
        b.at = aligned_alloc(align, b.len);
        CHECK((uintptr_t)b.at % align == 0, "not aligned to %zu", align);
        break;
    default:
        b.at = malloc(b.len);
    }
    CHECK(b.at, "no block of %zu", b.len);
    CHECK(malloc_usable_size(b.at) >= b.len, "a block of %zu has %zu", b.len, malloc_usable_size(b.at));
    fill(b.at, b.len, b.seed);
    return b;
}

static void give_back(Block *b) {
    if (!b->at)
        return;
    verify(b->at, b->len, b->seed, "a block");
    free(b->at);
    b->at = NULL;
}

static void resize(Block *b, uint64_t *state) {
    size_t len = draw_length(state), least = len < b->len ? len : b->len;
    verify(b->at, b->len, b->seed, "before realloc");
    void *at = next(state) % 4 ? realloc(b->at, len) : reallocarray(b->at, 1, len);
    CHECK(at, "no realloc to %zu", len);
    b->at = at;
    verify(at, least & ~(size_t)7, b->seed, "after realloc");
    b->len = len;
    fill(at, len, b->seed);
}

static void storm(uint64_t seed, unsigned steps) {
    Block *held = calloc(HELD, sizeof *held);
    CHECK(held, "calloc");
    uint64_t state = seed * 0x9e3779b97f4a7c15u | 1;
    for (unsigned i = 0; i < steps; i++) {
        Block *b = held + next(&state) % HELD;
        uint64_t what = next(&state) % 8;
        if (!b->at) {
            *b = ask(&state);
        } else if (what < 3) {
            resize(b, &state);
        } else if (what < 5) {
            // Somebody else frees it.
            pthread_mutex_lock(&post);
            Block *p = posted + next(&state) % POSTED, other = *p;
            *p = *b;
            pthread_mutex_unlock(&post);
            *b = other;
        } else {
            give_back(b);
        }
    }
    for (size_t i = 0; i < HELD; i++)
        give_back(held + i);
    free(held);
}

static void *thread(void *seed) {
    storm((uintptr_t)seed, rounds * 400);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "two arguments");
    unsigned n = strtoul(argv[1], 0, 0);
    rounds = strtoul(argv[2], 0, 0);
    CHECK(n <= 16, "too many threads");
    for (unsigned round = 0; round < 3; round++) {
        pthread_t threads[16];
        for (uintptr_t i = 0; i < n; i++)
            CHECK(pthread_create(threads + i, NULL, thread, (void *)(round * 100 + i + 1)) == 0, "pthread_create");
        for (unsigned i = 0; i < 3; i++) {
            storm(round * 100 + i + 50, rounds * 40);
            // (The allocator sees to its own locks.)
            pthread_mutex_lock(&post);
            pid_t child = fork();
            pthread_mutex_unlock(&post);
            CHECK(child >= 0, "fork");
            if (child == 0) {
                storm(round * 100 + i + 70, rounds * 40);
                _exit(7);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child, "waitpid");
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child ended with %#x", status);
        }
        for (unsigned i = 0; i < n; i++)
            CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
        printf("round %u\n", round);
    }
    for (size_t i = 0; i < POSTED; i++)
        give_back(posted + i);
    puts("done");
    return 0;
}
