// Transfers of several buffers by several threads go on where hardly any memory can move: in whole units, in units
// with holes, then beside units that are locked into memory.
// transfers MIB
#include "common.h"
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define THREADS 4
#define ROUNDS 20
#define PIECE (600 * KIB)

static char *memory_;
static size_t units_;
static size_t hole_;
static int file_;

// A buffer in `unit` that meets no hole.
static struct iovec buffer(size_t unit) { return (struct iovec){memory_ + unit * UNIT + 64 * KIB, PIECE}; }

static void *transfer(void *arg) {
    size_t t = (size_t)arg, own = units_ / THREADS;
    uint64_t state = t + 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct iovec v[3];
        for (int i = 0; i < 3; i++) {
            // Of every other unit, either those without a hole or those with one.
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t unit = t * own + (size_t)i * (own / 3) + (state >> 33) % (own / 3);
            v[i] = buffer((unit & ~(size_t)1) + hole_);
            fill(v[i].iov_base, PIECE, t + (uint64_t)i);
        }
        off_t at = (off_t)(t * 4 * MIB);
        CHECK(pwritev(file_, v, 3, at) == (ssize_t)(3 * PIECE), "pwritev");
        for (int i = 0; i < 3; i++)
            memset(v[i].iov_base, 0, PIECE);
        CHECK(preadv(file_, v, 3, at) == (ssize_t)(3 * PIECE), "preadv");
        for (int i = 0; i < 3; i++)
            verify(v[i].iov_base, PIECE, t + (uint64_t)i, "what was read");
    }
    return NULL;
}

static void run(const char *where) {
    pthread_t threads[THREADS];
    for (size_t t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, transfer, (void *)t) == 0, "pthread_create");
    for (size_t t = 0; t < THREADS; t++)
        CHECK(pthread_join(threads[t], NULL) == 0, "pthread_join");
    printf("%s\n", where);
}

int main(int argc, char **argv) {
    CHECK(argc == 2, "transfers MIB");
    begin();
    FILE *file = tmpfile();
    CHECK(file, "tmpfile");
    file_ = fileno(file);
    units_ = strtoul(argv[1], 0, 0) * MIB / UNIT;
    char *p = mmap(NULL, (units_ + 1) * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    memory_ = (char *)(((size_t)p + UNIT - 1) & ~(UNIT - 1));
    // (Where holes take memory that is the kernel's for good, there is an end.)
    size_t holes = 0;
    while (holes < units_ / 2 && mprotect(memory_ + (2 * holes + 1) * UNIT + UNIT / 2, PAGE, PROT_NONE) == 0)
        holes++;
    CHECK(holes > 0, "mprotect");
    for (size_t u = 0; u < units_; u++) {
        fill(memory_ + u * UNIT, UNIT / 2, u);
        evict(memory_ + u * UNIT, UNIT);
    }
    hole_ = 0;
    run("whole units");
    hole_ = 1;
    run("units with holes");
    size_t locked = 0;
    while (locked < units_ / 2 && mlock(memory_ + locked * UNIT + 4 * KIB, PAGE) == 0)
        locked++;
    run("beside locked units");
    // What is the kernel's and what is not are one message.
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "socketpair");
    struct iovec both[] = {{memory_ + 64 * KIB, 100}, {memory_ + (units_ - 1) * UNIT + 64 * KIB, 100}};
    char message[300];
    CHECK(writev(pair[0], both, 2) == 200, "writev");
    CHECK(recv(pair[1], message, sizeof message, 0) == 200, "recv");
    done();
    return 0;
}
