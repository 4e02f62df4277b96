// Asynchronous transfers (io_submit) from and to memory that is larger than the budget: single buffers and vectors, through
// the page cache and around it, many at a time, from two threads, and to memory that is unmapped before they are done.
// Given "leaves": memory that was transferred to leaves again.
#include "transfer.h"
#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { MOST = 128 };

static long io_setup(unsigned n, aio_context_t *context) { return syscall(SYS_io_setup, n, context); }
static long io_destroy(aio_context_t context) { return syscall(SYS_io_destroy, context); }
static long io_submit(aio_context_t context, long n, struct iocb **list) { return syscall(SYS_io_submit, context, n, list); }
static long io_getevents(aio_context_t context, long min, long n, struct io_event *events) {
    return syscall(SYS_io_getevents, context, min, n, events, NULL);
}

static aio_context_t context_of(unsigned n) {
    aio_context_t context = 0;
    CHECK(io_setup(n, &context) == 0, "io_setup");
    return context;
}

// Submits all, collecting when no more are taken, until all are done.
static void transfer(aio_context_t context, struct iocb **list, long n) {
    struct io_event events[MOST];
    long submitted = 0, done = 0;
    while (done < n) {
        if (submitted < n) {
            long r = io_submit(context, n - submitted, list + submitted);
            CHECK(r > 0 || (r == -1 && errno == EAGAIN && submitted > done), "io_submit: %ld, %ld under way", r, submitted - done);
            submitted += r > 0 ? r : 0;
        }
        long r = io_getevents(context, 1, MOST, events);
        CHECK(r > 0, "io_getevents: %ld", r);
        for (long i = 0; i < r; i++) {
            struct iocb *block = (struct iocb *)events[i].obj;
            CHECK(events[i].res == (long long)block->aio_data, "a transfer answered %lld", (long long)events[i].res);
        }
        done += r;
    }
}

static struct iocb block_of(int fd, int op, void *buf, size_t n, size_t number) {
    return (struct iocb){
        .aio_lio_opcode = op,
        .aio_fildes = fd,
        .aio_buf = (uintptr_t)buf,
        .aio_nbytes = n,
        .aio_offset = number * BLOCK,
        .aio_data = BLOCK,
    };
}

struct worker {
    char *heap;
    int flags;
    uint64_t state;
};

static uint64_t draw(struct worker *w, uint64_t n) {
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (w->state >> 33) % n;
}

// Reads the file's blocks into places all over the heap, again and again; some by vectors.
static void *reads(void *of) {
    struct worker *w = of;
    int fd = open_file(w->flags);
    aio_context_t context = context_of(MOST);
    size_t places = HEAP / BLOCK;
    int *what = calloc(places, sizeof *what);
    static __thread struct iocb blocks[MOST];
    static __thread struct iovec vectors[MOST][2];
    struct iocb *list[MOST];
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < MOST; i++) {
            // (Each place once in a round.)
            size_t place = (draw(w, places / MOST) * MOST + i) % places, number = draw(w, BLOCKS);
            char *at = w->heap + place * BLOCK;
            blocks[i] = block_of(fd, IOCB_CMD_PREAD, at, BLOCK, number);
            if (i % 3 == 0) {
                vectors[i][0] = (struct iovec){at, BLOCK / 2};
                vectors[i][1] = (struct iovec){at + BLOCK / 2, BLOCK / 2};
                blocks[i].aio_lio_opcode = IOCB_CMD_PREADV;
                blocks[i].aio_buf = (uintptr_t)vectors[i];
                blocks[i].aio_nbytes = 2;
            }
            what[place] = number + 1;
            list[i] = &blocks[i];
        }
        transfer(context, list, MOST);
    }
    verify_places(w->heap, what);
    CHECK(io_destroy(context) == 0, "io_destroy");
    free(what);
    close(fd);
    return NULL;
}

// The file gets its content from memory of which most is absent.
static void writes(char *heap, int flags) {
    int fd = open_file(flags);
    aio_context_t context = context_of(MOST);
    static struct iocb blocks[MOST];
    struct iocb *list[MOST];
    fill_blocks(heap);
    for (size_t from = 0; from < BLOCKS; from += MOST) {
        for (size_t i = 0; i < MOST; i++) {
            blocks[i] = block_of(fd, IOCB_CMD_PWRITE, heap + (from + i) * BLOCK * 7, BLOCK, from + i);
            list[i] = &blocks[i];
        }
        transfer(context, list, MOST);
    }
    CHECK(io_destroy(context) == 0, "io_destroy");
    verify_file(fd);
    close(fd);
}

// Memory is unmapped before what is read into it has come; what is mapped next keeps what it holds.
static void unmapped(void) {
    int fd = open_file(O_DIRECT);
    enum { N = 32 };
    static struct iocb blocks[N];
    struct iocb *list[N];
    struct io_event events[N];
    for (int round = 0; round < 12; round++) {
        aio_context_t context = context_of(N);
        char *p = mmap(NULL, 8 * MIB, RW, ANON, -1, 0);
        CHECK(p != MAP_FAILED, "mmap");
        for (size_t i = 0; i < N; i++) {
            blocks[i] = block_of(fd, IOCB_CMD_PREAD, p + i * BLOCK, BLOCK, i);
            list[i] = &blocks[i];
        }
        long n = io_submit(context, N, list);
        CHECK(n > 0, "io_submit: %ld", n);
        CHECK(munmap(p, 8 * MIB) == 0, "munmap");
        char *q = mmap(NULL, 16 * MIB, RW, ANON, -1, 0);
        CHECK(q != MAP_FAILED, "mmap");
        fill(q, 16 * MIB, round + 100);
        if (round % 2)
            CHECK(io_getevents(context, n, N, events) == n, "io_getevents");
        CHECK(io_destroy(context) == 0, "io_destroy");
        verify(q, 16 * MIB, round + 100, "what was mapped next");
        CHECK(munmap(q, 16 * MIB) == 0, "munmap");
    }
    close(fd);
}

// Errors are the kernel's.
static void refused(char *heap) {
    int fd = open_file(0);
    aio_context_t context = context_of(8);
    char *closed = mmap(NULL, 4 * MIB, RW, ANON, -1, 0);
    CHECK(closed != MAP_FAILED && mprotect(closed, 2 * MIB, PROT_READ) == 0, "mprotect");
    CHECK(mprotect(closed + 2 * MIB, 2 * MIB, PROT_NONE) == 0, "mprotect");
    struct iocb blocks[] = {
        block_of(fd, IOCB_CMD_PREAD, closed, BLOCK, 0),
        block_of(fd, IOCB_CMD_PWRITE, closed + 3 * MIB, BLOCK, 0),
        block_of(-1, IOCB_CMD_PREAD, heap, BLOCK, 0),
        block_of(fd, 99, heap, BLOCK, 0),
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        struct iocb *one = &blocks[i];
        struct io_event event;
        long r = io_submit(context, 1, &one);
        int e = errno;
        if (r == 1 && io_getevents(context, 1, 1, &event) == 1)
            printf("refused %zu: an event, %lld\n", i, (long long)event.res);
        else
            printf("refused %zu: %ld, errno %d\n", i, r, e);
    }
    struct iocb *one = &blocks[0];
    long r = io_submit(0x1000, 1, &one);
    printf("no context: %ld, errno %d\n", r, errno);
    r = io_destroy(0x1000);
    printf("no context: %ld, errno %d\n", r, errno);
    CHECK(io_destroy(context) == 0, "io_destroy");
    close(fd);
}

// What was transferred to leaves memory at the next submission at the latest.
static void leaves(char *heap) {
    int fd = open_file(0);
    aio_context_t context = context_of(8);
    for (int turn = 0; turn < 10; turn++) {
        struct iocb block = block_of(fd, IOCB_CMD_PREAD, heap + MIB, BLOCK, turn), *list = &block;
        transfer(context, &list, 1);
        struct iocb other = block_of(fd, IOCB_CMD_PREAD, heap + 100 * MIB, BLOCK, turn), *next = &other;
        transfer(context, &next, 1);
        evict(heap, 16 * MIB);
        CHECK(pages_absent(heap + MIB, BLOCK) == BLOCK / (int)PAGE, "turn %d: it stays", turn);
        verify(heap + MIB, BLOCK, turn + 1, "read back");
    }
    CHECK(io_destroy(context) == 0, "io_destroy");
    close(fd);
}

int main(int argc, char **argv) {
    begin();
    path = argv[1];
    char *heap = mmap(NULL, HEAP, RW, ANON, -1, 0);
    CHECK(heap != MAP_FAILED, "mmap");
    make_file();
    writes(heap, 0);
    writes(heap, O_DIRECT);
    puts("written");
    if (argc > 2 && strcmp(argv[2], "leaves") == 0) {
        leaves(heap);
        return 0;
    }
    for (int direct = 0; direct < 2; direct++) {
        struct worker w = {heap, direct ? O_DIRECT : 0, 1 + direct};
        reads(&w);
    }
    puts("read");
    char *other = mmap(NULL, HEAP, RW, ANON, -1, 0);
    CHECK(other != MAP_FAILED, "mmap");
    struct worker a = {heap, O_DIRECT, 11}, b = {other, 0, 12};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reads, &a) == 0, "thread");
    reads(&b);
    CHECK(pthread_join(thread, NULL) == 0, "join");
    puts("read by two");
    unmapped();
    puts("unmapped");
    refused(heap);
    CHECK(unlink(path) == 0, "unlink");
    done();
    return 0;
}
