// A parent that goes on beside a child that stays, and others that come and go: what swap keeps for them is what they had when
// they were forked, not all that the parent has changed since.
#include "common.h"
#include <sys/wait.h>

int main(void) {
    const size_t n = 32 * MIB;
    char *p = malloc(n);
    int go[2];
    CHECK(p && pipe(go) == 0, "set-up");
    fill(p, n, 1);
    pid_t stays = fork();
    CHECK(stays >= 0, "fork");
    if (stays == 0) {
        char c;
        close(go[1]);
        CHECK(read(go[0], &c, 1) == 0, "pipe");
        verify(p, n, 1, "the child that stayed");
        _exit(5);
    }
    close(go[0]);
    int status;
    for (int round = 2; round < 20; round++) {
        fill(p, n, round);
        if (round % 3 == 0) {
            pid_t other = fork();
            CHECK(other >= 0, "fork");
            if (other == 0) {
                verify(p, n, round, "a child that came and went");
                _exit(6);
            }
            fill(p, n, 100 + round);
            CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 6, "%#x", status);
            verify(p, n, 100 + round, "the parent, after it");
        } else
            verify(p, n, round, "the parent");
    }
    close(go[1]);
    CHECK(waitpid(stays, &status, 0) == stays && WIFEXITED(status) && WEXITSTATUS(status) == 5, "%#x", status);
    puts("right");
    return 0;
}
