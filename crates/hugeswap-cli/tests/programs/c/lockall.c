// mlockall and munlockall, before there is much memory ("early") or after ("late"), by the C library or by an instruction
// ("raw"): the program goes on as without, in less memory than it has.
#include "common.h"
#include <sys/syscall.h>

static long call(int raw, long nr, long flags) {
    if (!raw)
        return nr == SYS_mlockall ? mlockall((int)flags) : munlockall();
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(flags) : "rcx", "r11", "memory");
    errno = (int)-r;
    return r == 0 ? 0 : -1;
}

static void lock_all(int raw) {
    static const int wrong[] = {0, 4, 8, 1 | 8};
    for (int i = 0; i < 4; i++)
        CHECK(call(raw, SYS_mlockall, wrong[i]) == -1 && errno == EINVAL, "flags %d", wrong[i]);
    // (Without the privilege it may fail.)
    call(raw, SYS_mlockall, MCL_CURRENT | MCL_FUTURE);
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "lockall early|late raw|libc");
    int early = !strcmp(argv[1], "early"), raw = !strcmp(argv[2], "raw");
    const size_t len = 96 * MIB;
    if (early)
        lock_all(raw);
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, len, 1);
    if (!early)
        lock_all(raw);
    CHECK(mlock(p + 5 * MIB, PAGE) == 0, "mlock");
    fill(p, len, 2);
    verify(p, len, 2, "locked");
    CHECK(call(raw, SYS_munlockall, 0) == 0, "munlockall");
    verify(p, len, 2, "unlocked");
    printf("%lx\n", sum(p, len));
    return 0;
}
