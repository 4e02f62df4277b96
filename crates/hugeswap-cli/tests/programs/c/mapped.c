// A heap of pieces of 256 KiB, each mapped by itself, as some runtimes have it; a part of it is unmapped and mapped again.
#include "common.h"

#define PIECE (256 * KIB)
#define PIECES 400

static char *map(void) {
    char *p = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "%s", strerror(errno));
    for (size_t i = 0; i < PIECE; i += PAGE)
        CHECK(p[i] == 0, "not zero");
    return p;
}

int main(void) {
    static char *pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = map();
        fill(pieces[i], PIECE, i);
    }
    for (int i = 0; i < PIECES; i += 3) {
        CHECK(munmap(pieces[i], PIECE) == 0, "%s", strerror(errno));
        pieces[i] = map();
        fill(pieces[i], PIECE, i);
    }
    for (int i = 0; i < PIECES; i++)
        verify(pieces[i], PIECE, i, "piece");
    puts("ok");
}
