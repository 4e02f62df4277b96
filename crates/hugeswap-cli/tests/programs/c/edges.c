// What malloc and its kin promise at the edges: sizes of 0 and of too much, alignments, errno, blocks that the C library
// allocates and the program frees, and the other way round. First it allocates enough for small blocks to be managed.
#include "common.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>

static volatile size_t much = PTRDIFF_MAX;

static void sizes(void) {
    void *nothing = malloc(0);
    CHECK(nothing, "malloc(0)");
    CHECK(((uintptr_t)nothing & 15) == 0, "not aligned");
    free(nothing);
    free(NULL);
    void *p = malloc(100);
    CHECK(realloc(p, 0) == NULL, "realloc to 0");
    p = realloc(NULL, 50);
    CHECK(p, "realloc of NULL");
    errno = 0;
    CHECK(realloc(p, much) == NULL && errno == ENOMEM, "realloc of too much");
    errno = 0;
    CHECK(malloc(much) == NULL && errno == ENOMEM, "malloc of too much");
    errno = 0;
    CHECK(calloc(much, 4) == NULL && errno == ENOMEM, "calloc of too much");
    errno = 0;
    CHECK(reallocarray(p, much, 4) == NULL && errno == ENOMEM, "reallocarray of too much");
    errno = 77;
    free(p);
    CHECK(errno == 77, "free changed errno");
    for (size_t len = 1; len < 5 * MIB; len = len * 5 / 4 + 1) {
        char *q = malloc(len);
        CHECK(q && ((uintptr_t)q & 15) == 0, "malloc of %zu", len);
        CHECK(malloc_usable_size(q) >= len, "%zu can be used of %zu", malloc_usable_size(q), len);
        memset(q, 7, malloc_usable_size(q));
        free(q);
        q = calloc(1, len);
        verify_zero(q, len, "calloc");
        free(q);
    }
    // A block that grows from the smallest to the largest and back keeps its bytes.
    unsigned char *q = malloc(1);
    q[0] = 1;
    size_t have = 1;
    for (size_t len = 2; len < 8 * MIB; have = len, len = len * 3 / 2 + 1) {
        q = realloc(q, len);
        for (size_t i = 0; i < have; i += have / 16 + 1)
            CHECK(q[i] == (unsigned char)(i * 7 + 1), "byte %zu of %zu when growing to %zu", i, have, len);
        for (size_t i = 0; i < len; i++)
            q[i] = (unsigned char)(i * 7 + 1);
    }
    for (size_t len = have; len; len /= 3) {
        q = realloc(q, len);
        for (size_t i = 0; i < len; i += len / 16 + 1)
            CHECK(q[i] == (unsigned char)(i * 7 + 1), "byte %zu when shrinking to %zu", i, len);
    }
    free(q);
}

static void alignments(void) {
    for (size_t align = 8; align <= 8 * MIB; align *= 2)
        for (size_t len = 1; len < 4 * MIB; len = len * 9 + 5) {
            void *p[4] = {NULL, aligned_alloc(align, (len + align - 1) & ~(align - 1)), memalign(align, len), NULL};
            errno = 0;
            CHECK(posix_memalign(p, align, len) == 0 && errno == 0, "posix_memalign");
            p[3] = len % 2 ? valloc(len) : pvalloc(len);
            for (unsigned i = 0; i < 4; i++) {
                CHECK(p[i] && (uintptr_t)p[i] % (i < 3 ? align : 4096) == 0, "way %u, %zu at a multiple of %zu", i, len, align);
                CHECK(malloc_usable_size(p[i]) >= len, "usable");
                memset(p[i], 1, len);
                free(p[i]);
            }
        }
    void *p = &p;
    CHECK(posix_memalign(&p, 3, 8) == EINVAL && p == &p, "an alignment of 3");
    CHECK(posix_memalign(&p, 4, 8) == EINVAL, "an alignment of 4");
    p = memalign(24, 100);
    CHECK(p && (uintptr_t)p % 8 == 0, "memalign of 24");
    free(p);
}

// Blocks go between the program and the C library in both directions.
static void library(void) {
    char *copy = strdup("a string"), *text = NULL, *line = malloc(2);
    CHECK(asprintf(&text, "%s and %d", copy, 5) == 14 && strcmp(text, "a string and 5") == 0, "asprintf");
    free(copy);
    text = realloc(text, 5000);
    CHECK(strcmp(text, "a string and 5") == 0, "realloc of the C library's block");
    FILE *f = tmpfile();
    CHECK(f, "tmpfile");
    char *buffer = malloc(3000);
    CHECK(setvbuf(f, buffer, _IOFBF, 3000) == 0, "setvbuf");
    for (unsigned i = 0; i < 2000; i++)
        fprintf(f, "%s, line %u %*u\n", text, i, (int)(i % 900), i);
    rewind(f);
    size_t n = 2;
    for (unsigned i = 0; i < 2000; i++) {
        unsigned number = 0, last = 0;
        CHECK(getline(&line, &n, f) > 0, "getline");
        CHECK(sscanf(line, "a string and 5, line %u %u", &number, &last) == 2 && number == i && last == i, "line %u: %s", i, line);
    }
    fclose(f);
    free(buffer);
    free(line);
    free(text);
    text = NULL;
    FILE *stream = open_memstream(&text, &n);
    for (unsigned i = 0; i < 50000; i++)
        fprintf(stream, "%u ", i);
    fclose(stream);
    CHECK(n == 288890 && strcmp(text + n - 6, "49999 ") == 0, "open_memstream: %zu", n);
    free(text);
    char *variable = malloc(100);
    strcpy(variable, "OF_THE_HEAP=yes");
    CHECK(putenv(variable) == 0 && strcmp(getenv("OF_THE_HEAP"), "yes") == 0, "putenv");
    CHECK(system("test \"$OF_THE_HEAP\" = yes") == 0, "the environment of a child");
}

static void *in_thread(void *part) {
    sizes();
    library();
    return part;
}

int main(void) {
    enum { FIRST = 200000 };
    char **first = malloc(FIRST * sizeof *first);
    for (unsigned i = 0; i < FIRST; i++) {
        first[i] = malloc(20 + i % 300);
        memset(first[i], (int)(i % 251), 20 + i % 300);
    }
    sizes();
    alignments();
    library();
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_create(threads + i, NULL, in_thread, NULL) == 0, "pthread_create");
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    for (unsigned i = 0; i < FIRST; i++) {
        for (unsigned j = 0; j < 20 + i % 300; j++)
            CHECK((unsigned char)first[i][j] == i % 251, "byte %u of block %u", j, i);
        if (i % 3)
            first[i] = realloc(first[i], 10 + i % 700);
        else
            free(first[i]);
    }
    for (unsigned i = 0; i < FIRST; i++)
        if (i % 3) {
            CHECK((unsigned char)first[i][9] == i % 251, "block %u after realloc", i);
            free(first[i]);
        }
    free(first);
    malloc_trim(0);
    puts("done");
    return 0;
}
