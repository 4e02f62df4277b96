// Writes every other page again and again, in an order that no readahead follows, in base pages. Asks
// for an io_uring of its own, which programs under hugeswap do not get.
// rings MIB ROUNDS
#include "common.h"
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 3, "two arguments");
    size_t len = strtoul(argv[1], 0, 0) * MIB, rounds = strtoul(argv[2], 0, 0);
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, len, 1);
    size_t pairs = len / PAGE / 2;
    for (size_t r = 0; r < rounds; r++)
        for (size_t i = 0; i < pairs; i++)
            fill(p + i * 7919 % pairs * 2 * PAGE, PAGE, 2 + r);
    for (size_t i = 0; i < pairs; i++) {
        verify(p + i * 2 * PAGE, PAGE, 1 + rounds, "a page that changed");
        size_t other = (i * 2 + 1) * PAGE;
        verify_from(p + other, other / 8, PAGE, 1, "a page that did not");
    }
    char params[256] = {0};
    long ring = syscall(SYS_io_uring_setup, 4, params);
    if (getenv("HUGESWAP_POOL"))
        CHECK(ring == -1 && errno == ENOSYS, "a ring of the program's own");
    puts("all as written");
    return 0;
}
