// Children that each change a little of what they share with their parent and then rest, while the
// parent works on memory that would fit the budget if they had not that little in it.
// resting CHILDREN MIB ROUNDS
#include "common.h"
#include <sys/wait.h>
#include <time.h>

int main(int argc, char **argv) {
    begin();
    CHECK(argc == 4, "three arguments");
    int children = atoi(argv[1]);
    size_t len = strtoul(argv[2], 0, 0) * MIB, rounds = strtoul(argv[3], 0, 0);
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int go[2], ready[2];
    CHECK(p != MAP_FAILED && pipe(go) == 0 && pipe(ready) == 0, "set-up");
    fill(p, len, 1);
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            char c = 0;
            close(go[1]);
            size_t at = i % (len / UNIT) * UNIT;
            fill(p + at, PAGE, 1000 + i);
            CHECK(write(ready[1], &c, 1) == 1, "ready");
            CHECK(read(go[0], &c, 1) == 0, "go");
            verify(p + at, PAGE, 1000 + i, "a child's page");
            _exit(0);
        }
        char c;
        CHECK(read(ready[0], &c, 1) == 1, "a child");
    }
    // So that they rest.
    struct timespec rest = {.tv_sec = 1, .tv_nsec = 500000000};
    CHECK(nanosleep(&rest, NULL) == 0, "nanosleep");
    for (size_t r = 0; r < rounds; r++)
        fill(p, len, 2 + r);
    verify(p, len, 1 + rounds, "the parent's memory");
    close(go[1]);
    for (int i = 0; i < children; i++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0, "a child ended with status %#x", status);
    }
    puts("fine");
    return 0;
}
