// What a call costs that submits one request of an io_uring which does nothing, and waits for it.
//   gcc -O2 -o requests bench/programs/requests.c
//   ./requests; hugeswap run --memory 64M --set syscall.io_uring=on -- ./requests
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RW (PROT_READ | PROT_WRITE)
enum { TIMES = 100000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(void) {
    // (Memory that is managed.)
    char *heap = mmap(NULL, 16 << 20, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    heap[0] = 1;
    struct io_uring_params p = {0};
    int fd = syscall(SYS_io_uring_setup, 8, &p);
    if (fd < 0)
        return perror("io_uring_setup"), 1;
    size_t sq = p.sq_off.array + p.sq_entries * 4, cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *queues = mmap(NULL, sq > cq ? sq : cq, RW, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, p.sq_entries * sizeof *sqes, RW, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
    unsigned *tail = (unsigned *)(queues + p.sq_off.tail), *head = (unsigned *)(queues + p.cq_off.head);
    double start = now();
    for (int i = 0; i < TIMES; i++) {
        unsigned place = *tail & (p.sq_entries - 1);
        memset(&sqes[place], 0, sizeof *sqes);
        ((unsigned *)(queues + p.sq_off.array))[place] = place;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        if (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 8) != 1)
            return perror("io_uring_enter"), 1;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
    printf("%.2f us\n", (now() - start) / TIMES);
    return 0;
}
