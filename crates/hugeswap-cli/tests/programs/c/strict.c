// An allocator that ends the process when it is entered again by the thread that is in it, or entered by a thread of hugeswap's. It
// asks mmap for its memory with its lock held, as allocators do. Blocks by powers of two; nothing is given back but what is large.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { CLASSES = 48, CHUNK = 4 << 20, LARGE = 20 };

// What stands before a block: where its mapping begins, how long that is, and its class.
typedef struct {
    void *map;
    size_t len;
    size_t room;
    int class;
} Head;

typedef struct Free {
    struct Free *next;
} Free;

static Free *lists[CLASSES];
static char *chunk, *chunk_end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside __attribute__((tls_model("initial-exec")));

static void end(const char *why) {
    if (write(2, why, strlen(why)) < 0)
        _exit(4);
    _exit(3);
}

static void enter(void) {
    char name[17] = "";
    prctl(PR_GET_NAME, name);
    if (!strncmp(name, "hs-", 3))
        end("strict: entered by a thread of hugeswap's\n");
    if (inside)
        end("strict: entered again\n");
    inside = 1;
    pthread_mutex_lock(&lock);
}

static void leave(void) {
    pthread_mutex_unlock(&lock);
    inside = 0;
}

static void *map(size_t len) {
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *take(size_t align, size_t size) {
    if (align < 16)
        align = 16;
    size_t room = size + align + sizeof(Head);
    if (room < size)
        return errno = ENOMEM, NULL;
    int class = 6;
    while (((size_t)1 << class) < room)
        class++;
    char *at;
    enter();
    if (class > LARGE) {
        at = map(room);
    } else if (lists[class]) {
        at = (char *)lists[class];
        lists[class] = lists[class]->next;
    } else {
        room = (size_t)1 << class;
        if (chunk_end - chunk < (ptrdiff_t)room) {
            chunk = map(CHUNK);
            chunk_end = chunk ? chunk + CHUNK : NULL;
        }
        at = chunk;
        if (chunk)
            chunk += room;
    }
    leave();
    if (!at)
        return errno = ENOMEM, NULL;
    uintptr_t p = ((uintptr_t)at + sizeof(Head) + align - 1) & ~(align - 1);
    size_t whole = class > LARGE ? room : (size_t)1 << class;
    ((Head *)p)[-1] = (Head){at, room, (size_t)(at + whole - (char *)p), class};
    return (void *)p;
}

void *malloc(size_t size) { return take(16, size); }

void free(void *p) {
    if (!p)
        return;
    int e = errno;
    Head h = ((Head *)p)[-1];
    enter();
    if (h.class > LARGE) {
        munmap(h.map, h.len);
    } else {
        Free *f = h.map;
        f->next = lists[h.class];
        lists[h.class] = f;
    }
    leave();
    errno = e;
}

void *calloc(size_t n, size_t each) {
    size_t size;
    if (__builtin_mul_overflow(n, each, &size))
        return errno = ENOMEM, NULL;
    void *p = take(16, size);
    return p ? memset(p, 0, size) : p;
}

void *realloc(void *p, size_t size) {
    void *q = take(16, size);
    if (p && q) {
        size_t room = ((Head *)p)[-1].room;
        memcpy(q, p, room < size ? room : size);
        free(p);
    }
    return q;
}

void *memalign(size_t align, size_t size) { return take(align, size); }
void *aligned_alloc(size_t align, size_t size) { return take(align, size); }
int posix_memalign(void **out, size_t align, size_t size) {
    void *p = take(align, size);
    return p ? (*out = p, 0) : ENOMEM;
}
size_t malloc_usable_size(void *p) { return p ? ((Head *)p)[-1].room : 0; }

static void before(void) { pthread_mutex_lock(&lock); }
static void after(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void) { pthread_atfork(before, after, after); }
