// What the programs share that transfer blocks of a file: the file, and draws.
#ifndef TRANSFER_H
#define TRANSFER_H
#include "common.h"
#include <fcntl.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
enum { BLOCK = 64 * 1024, BLOCKS = 256 };
static const size_t HEAP = 160 * MIB;

static const char *path;

static inline int open_file(int flags) {
    int fd = open(path, O_RDWR | flags);
    // (Not every file system can do without the page cache.)
    if (fd < 0 && flags)
        fd = open(path, O_RDWR);
    CHECK(fd >= 0, "open %s", path);
    return fd;
}

static inline void make_file(void) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)BLOCKS * BLOCK) == 0, "a file");
    close(fd);
}

// Content for each block, in memory of which most is absent then.
static inline void fill_blocks(char *heap) {
    for (size_t i = 0; i < BLOCKS; i++)
        fill(heap + i * BLOCK * 7, BLOCK, i + 1);
    evict(heap, HEAP);
}

static inline void verify_file(int fd) {
    char *back = aligned_alloc(PAGE, BLOCK);
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(pread(fd, back, BLOCK, i * BLOCK) == BLOCK, "pread");
        verify(back, BLOCK, i + 1, "what was written");
    }
    free(back);
}

// Which block was read into each place of the heap, or 0.
static inline void verify_places(const char *heap, const int *what) {
    for (size_t place = 0; place < HEAP / BLOCK; place++)
        if (what[place])
            verify(heap + place * BLOCK, BLOCK, what[place], "what was read");
}

#endif
