// Asks for memory until none is left, goes on with what it has, and gets more once it gave some back.
// hog PIECE_MIB LIMIT_MIB: prints how many pieces there were; reaching the limit is an error.
#include "common.h"

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 3, "two arguments");
    size_t piece = strtoul(argv[1], 0, 0) * MIB, limit = strtoul(argv[2], 0, 0) * MIB / piece;
    char **p = calloc(limit, sizeof *p);
    CHECK(p, "calloc");
    size_t n = 0;
    for (;; n++) {
        CHECK(n < limit, "%zu pieces, and no end", n);
        errno = 0;
        // In turns, every way to ask.
        if (n % 3 == 0) {
            p[n] = malloc(piece);
        } else if (n % 3 == 1) {
            p[n] = calloc(1, piece);
        } else {
            p[n] = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p[n] == MAP_FAILED)
                p[n] = NULL;
        }
        if (!p[n])
            break;
        fill(p[n], piece, n);
    }
    CHECK(errno == ENOMEM, "refused, but not with ENOMEM");
    printf("refused after %zu\n", n);
    CHECK(n > 4, "refused too early");
    errno = 0;
    CHECK(realloc(p[0], 64 * piece) == NULL && errno == ENOMEM, "a realloc beyond everything");
    for (size_t i = 0; i < n; i++)
        verify(p[i], piece, i, "after the refusal");
    for (size_t i = 0; i < n; i += 2) {
        if (i % 3 == 2)
            munmap(p[i], piece);
        else
            free(p[i]);
    }
    for (size_t i = 0; i < n; i += 2) {
        CHECK((p[i] = malloc(piece)), "malloc of what was given back");
        fill(p[i], piece, 100 + i);
    }
    for (size_t i = 0; i < n; i++)
        verify(p[i], piece, (i % 2 ? 0 : 100) + i, "at the end");
    puts("went on");
    return 0;
}
