// Requests of an io_uring from and to memory that is larger than the budget: single buffers, vectors and registered ones, of
// files and pipes, many at a time, with numbers of their own and with the same, and from two threads. Given "leaves": memory
// that was transferred to leaves again. Given "refused": there is no ring; "early": there is one
// before any memory is managed.
#include "transfer.h"
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { MOST = 64 };

struct ring {
    int fd;
    struct io_uring_params p;
    char *queues;
    struct io_uring_sqe *sqes;
};

static _Atomic unsigned *word(struct ring *r, unsigned offset) { return (_Atomic unsigned *)(r->queues + offset); }

static struct ring ring_of(unsigned n, unsigned flags) {
    struct ring r = {.p.flags = flags};
    r.fd = syscall(SYS_io_uring_setup, n, &r.p);
    CHECK(r.fd >= 0, "io_uring_setup");
    size_t sq = r.p.sq_off.array + r.p.sq_entries * 4, cq = r.p.cq_off.cqes + r.p.cq_entries * sizeof(struct io_uring_cqe);
    r.queues = mmap(NULL, sq > cq ? sq : cq, RW, MAP_SHARED | MAP_POPULATE, r.fd, IORING_OFF_SQ_RING);
    r.sqes = mmap(NULL, r.p.sq_entries * sizeof *r.sqes, RW, MAP_SHARED | MAP_POPULATE, r.fd, IORING_OFF_SQES);
    CHECK(r.queues != MAP_FAILED && r.sqes != MAP_FAILED, "mmap of a ring");
    return r;
}

// A request that is submitted with the next `enter`.
static struct io_uring_sqe *next(struct ring *r) {
    unsigned tail = *word(r, r->p.sq_off.tail), place = tail & (r->p.sq_entries - 1);
    ((unsigned *)(r->queues + r->p.sq_off.array))[place] = place;
    atomic_store(word(r, r->p.sq_off.tail), tail + 1);
    memset(&r->sqes[place], 0, sizeof *r->sqes);
    return &r->sqes[place];
}

static void request(struct ring *r, int op, int fd, void *at, unsigned len, uint64_t offset, uint64_t number) {
    struct io_uring_sqe *s = next(r);
    s->opcode = op, s->fd = fd, s->addr = (uintptr_t)at, s->len = len, s->off = offset, s->user_data = number;
}

static long enter(struct ring *r, unsigned submit, unsigned wait) {
    long done;
    do
        done = syscall(SYS_io_uring_enter, r->fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 8);
    while (done < 0 && errno == EINTR);
    return done;
}

// The answer to a request, and its number.
static int answer(struct ring *r, uint64_t *number) {
    unsigned head = *word(r, r->p.cq_off.head);
    while (head == atomic_load(word(r, r->p.cq_off.tail)))
        CHECK(enter(r, 0, 1) >= 0, "io_uring_enter");
    struct io_uring_cqe *c = (struct io_uring_cqe *)(r->queues + r->p.cq_off.cqes) + (head & (r->p.cq_entries - 1));
    int res = c->res;
    *number = c->user_data;
    atomic_store(word(r, r->p.cq_off.head), head + 1);
    return res;
}

static void all_done(struct ring *r, int n, int answered) {
    long done = enter(r, n, n);
    CHECK(done == n, "io_uring_enter: %ld of %d", done, n);
    for (int i = 0; i < n; i++) {
        uint64_t number;
        int res = answer(r, &number);
        CHECK(res == answered, "request %lu answered %d", (unsigned long)number, res);
    }
}

struct worker {
    char *heap;
    int flags, same;
    unsigned ring_flags;
    uint64_t state;
};

static uint64_t draw(struct worker *w, uint64_t n) {
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (w->state >> 33) % n;
}

static void *reads(void *of) {
    struct worker *w = of;
    int fd = open_file(w->flags);
    struct ring r = ring_of(MOST, w->ring_flags);
    size_t places = HEAP / BLOCK;
    int *what = calloc(places, sizeof *what);
    static __thread struct iovec vectors[MOST][2];
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < MOST; i++) {
            // (Each place once in a round.)
            size_t place = (draw(w, places / MOST) * MOST + i) % places, number = draw(w, BLOCKS);
            char *at = w->heap + place * BLOCK;
            what[place] = number + 1;
            if (i % 3 == 0) {
                vectors[i][0] = (struct iovec){at, BLOCK / 2};
                vectors[i][1] = (struct iovec){at + BLOCK / 2, BLOCK / 2};
                request(&r, IORING_OP_READV, fd, vectors[i], 2, number * BLOCK, w->same ? 7 : i);
            } else {
                request(&r, IORING_OP_READ, fd, at, BLOCK, number * BLOCK, w->same ? 7 : i);
            }
        }
        all_done(&r, MOST, BLOCK);
    }
    verify_places(w->heap, what);
    free(what);
    close(r.fd);
    close(fd);
    return NULL;
}

// The file gets its content from memory of which most is absent.
static void writes(char *heap, int flags) {
    int fd = open_file(flags);
    struct ring r = ring_of(MOST, 0);
    fill_blocks(heap);
    for (size_t from = 0; from < BLOCKS; from += MOST) {
        for (size_t i = from; i < from + MOST; i++)
            request(&r, IORING_OP_WRITE, fd, heap + i * BLOCK * 7, BLOCK, i * BLOCK, i);
        all_done(&r, MOST, BLOCK);
    }
    verify_file(fd);
    close(r.fd);
    close(fd);
}

// Requests that wait have begun before their memory would leave, and end after.
static void waits(char *heap) {
    struct ring r = ring_of(MOST, 0);
    enum { N = 16 };
    int ends[N][2];
    for (int i = 0; i < N; i++) {
        CHECK(pipe(ends[i]) == 0, "pipe");
        request(&r, IORING_OP_READ, ends[i][0], heap + (size_t)i * 8 * MIB, 4096, 0, i);
    }
    CHECK(enter(&r, N, 0) == N, "io_uring_enter");
    evict(heap, HEAP);
    char content[4096];
    for (int i = 0; i < N; i++) {
        fill(content, sizeof content, i + 50);
        CHECK(write(ends[i][1], content, sizeof content) == sizeof content, "write");
    }
    for (int i = 0; i < N; i++) {
        uint64_t number;
        CHECK(answer(&r, &number) == 4096, "a request that waited");
        verify(heap + number * 8 * MIB, 4096, number + 50, "what was read late");
    }
    for (int i = 0; i < N; i++)
        close(ends[i][0]), close(ends[i][1]);
    close(r.fd);
}

// Registered buffers.
static void registered(char *heap) {
    int fd = open_file(O_DIRECT);
    struct ring r = ring_of(MOST, 0);
    struct iovec buffers[4];
    for (int i = 0; i < 4; i++)
        buffers[i] = (struct iovec){heap + (size_t)i * 3 * MIB, BLOCK};
    CHECK(syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_BUFFERS, buffers, 4) == 0, "register");
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 4; i++) {
            request(&r, IORING_OP_READ_FIXED, fd, buffers[i].iov_base, BLOCK, (round * 4 + i) * (uint64_t)BLOCK, i);
            r.sqes[(*word(&r, r.p.sq_off.tail) - 1) & (r.p.sq_entries - 1)].buf_index = i;
        }
        all_done(&r, 4, BLOCK);
        for (int i = 0; i < 4; i++)
            verify(buffers[i].iov_base, BLOCK, round * 4 + i + 1, "a registered buffer");
        evict(heap, 16 * MIB);
    }
    close(r.fd);
    close(fd);
}

// Errors are the kernel's.
static void refused(void) {
    int fd = open_file(0);
    struct ring r = ring_of(8, 0);
    char *closed = mmap(NULL, 4 * MIB, RW, ANON, -1, 0);
    CHECK(closed != MAP_FAILED && mprotect(closed, 2 * MIB, PROT_READ) == 0, "mprotect");
    CHECK(mprotect(closed + 2 * MIB, 2 * MIB, PROT_NONE) == 0, "mprotect");
    request(&r, IORING_OP_READ, fd, closed, BLOCK, 0, 1);
    request(&r, IORING_OP_WRITE, fd, closed + 3 * MIB, BLOCK, 0, 2);
    request(&r, IORING_OP_READ, 9999, closed, BLOCK, 0, 3);
    request(&r, 250, fd, closed, BLOCK, 0, 4);
    CHECK(enter(&r, 3, 3) == 3 && enter(&r, 1, 1) >= 0, "io_uring_enter");
    int res[5] = {0};
    for (int i = 0; i < 4; i++) {
        uint64_t number;
        int one = answer(&r, &number);
        res[number] = one;
    }
    printf("refused: %d %d %d %d\n", res[1], res[2], res[3], res[4]);
    long none = syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0);
    printf("no ring: %ld, errno %d\n", none, errno);
    close(r.fd);
    close(fd);
}

// What was transferred to leaves memory once it is known to be done: with the next call.
static void leaves(char *heap) {
    int fd = open_file(0);
    struct ring r = ring_of(8, 0);
    for (int turn = 0; turn < 10; turn++) {
        request(&r, IORING_OP_READ, fd, heap + MIB, BLOCK, turn * (uint64_t)BLOCK, turn);
        all_done(&r, 1, BLOCK);
        evict(heap, 16 * MIB);
        CHECK(pages_absent(heap + MIB, BLOCK) == BLOCK / (int)PAGE, "turn %d: it stays", turn);
        verify(heap + MIB, BLOCK, turn + 1, "read back");
    }
    close(r.fd);
    close(fd);
}

int main(int argc, char **argv) {
    begin();
    path = argv[1];
    // (A ring from before there is memory that could be managed.)
    int early = argc > 2 && strcmp(argv[2], "early") == 0;
    struct ring first = early ? ring_of(4, 0) : (struct ring){.fd = -1};
    char *heap = mmap(NULL, HEAP, RW, ANON, -1, 0);
    CHECK(heap != MAP_FAILED, "mmap");
    heap[0] = 1;
    if (argc > 2 && strcmp(argv[2], "refused") == 0) {
        struct io_uring_params p = {0};
        CHECK(syscall(SYS_io_uring_setup, 4, &p) == -1 && errno == ENOSYS, "a ring");
        return 0;
    }
    make_file();
    writes(heap, 0);
    writes(heap, O_DIRECT);
    puts("written");
    if (early) {
        CHECK(close(first.fd) == 0, "close");
        return 0;
    }
    if (argc > 2 && strcmp(argv[2], "leaves") == 0) {
        leaves(heap);
        return 0;
    }
    const unsigned deferred = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    struct worker w[] = {{heap, 0, 0, 0, 1}, {heap, O_DIRECT, 0, 0, 2}, {heap, O_DIRECT, 1, 0, 3}, {heap, O_DIRECT, 0, deferred, 4}};
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        reads(&w[i]);
    puts("read");
    char *other = mmap(NULL, HEAP, RW, ANON, -1, 0);
    CHECK(other != MAP_FAILED, "mmap");
    struct worker a = {heap, O_DIRECT, 0, 0, 11}, b = {other, 0, 0, 0, 12};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reads, &a) == 0, "thread");
    reads(&b);
    CHECK(pthread_join(thread, NULL) == 0, "join");
    puts("read by two");
    waits(heap);
    puts("waited");
    registered(other);
    puts("registered");
    refused();
    CHECK(unlink(path) == 0, "unlink");
    done();
    return 0;
}
