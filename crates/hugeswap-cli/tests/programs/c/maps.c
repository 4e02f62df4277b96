// What a program reads of /proc/self/maps, in every way to open it: its own mappings with the access that it has given,
// in order, each once; also of reserved, protected and locked memory, and while most of it is in swap.
#include "common.h"
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)

static const size_t LEN = 16 * MIB;
static char *region;

// Prints what of the region is mapped how, and checks the order of all.
static void tell(const char *how, int fd) {
    static char text[1 << 20];
    size_t n = 0;
    CHECK(fd >= 0, "%s", how);
    for (ssize_t got; (got = read(fd, text + n, sizeof text - 1 - n)) != 0; n += (size_t)got)
        CHECK(got > 0, "%s", how);
    text[n] = 0;
    printf("%s, %s:\n", how, fcntl(fd, F_GETFD) & FD_CLOEXEC ? "closed by exec" : "kept");
    CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && write(fd, "x", 1) == -1, "it is read-only");
    close(fd);
    size_t last = 0, base = (size_t)region, end = 0;
    char access[5] = "";
    int code = 0, stack = 0;
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        char *at, *rest;
        size_t from = strtoul(line, &at, 16), to = strtoul(at + 1, &rest, 16);
        CHECK(*at == '-' && *rest == ' ' && last <= from && from < to, "%s: %.80s", how, line);
        last = to;
        code |= from <= (size_t)tell && (size_t)tell < to && !strncmp(rest, " r-xp", 5) && strstr(rest, "maps") != NULL;
        stack |= from <= (size_t)&last && (size_t)&last < to && !strncmp(rest, " rw-p", 5);
        from = from < base ? base : from;
        to = to > base + LEN ? base + LEN : to;
        if (from >= to)
            continue;
        // (Neighbours may be two mappings.)
        if (end != from || strncmp(access, rest + 1, 4))
            printf("%s%zu KiB on %.4s", end ? ", " : "", (from - base) / KIB, rest + 1);
        memcpy(access, rest + 1, 4);
        end = to;
    }
    printf(", to %zu KiB\n", (end - base) / KIB);
    CHECK(code && stack, "%s: code %d, stack %d", how, code, stack);
}

static void all_ways(void) {
    char own[64];
    snprintf(own, sizeof own, "/proc/%d/maps", (int)getpid());
    tell("open", open("/proc/self/maps", O_RDONLY));
    tell("closed by exec", open(own, O_RDONLY | O_CLOEXEC));
    tell("a thread's", openat(AT_FDCWD, "/proc/thread-self/maps", O_RDONLY | O_CLOEXEC));
    tell("by number", (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY, 0));
    FILE *f = fopen("/proc/self/maps", "re");
    CHECK(f, "a stream");
    tell("a stream", dup(fileno(f)));
    fclose(f);
}

int main(void) {
    region = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(region != MAP_FAILED, "reserved");
    all_ways();
    CHECK(mprotect(region + MIB, 13 * MIB, RW) == 0, "committed");
    fill(region + MIB, 13 * MIB, 1);
    CHECK(mprotect(region + 3 * MIB, 64 * KIB, PROT_READ) == 0, "read-only");
    CHECK(mprotect(region + 4 * MIB, 2 * MIB, PROT_NONE) == 0, "no access");
    CHECK(munmap(region + 7 * MIB, 256 * KIB) == 0, "a hole");
    CHECK(mlock(region + 8 * MIB, PAGE) == 0, "locked");
    int self = open("/proc/self/exe", O_RDONLY);
    CHECK(mmap(region + 9 * MIB, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, self, 0) == region + 9 * MIB, "a file");
    all_ways();
    for (size_t i = 0; i < LEN; i += UNIT)
        evict(region + i, UNIT);
    all_ways();
    verify_from(region + 8 * MIB, 7 * MIB / 8, MIB, 1, "there");
    verify_from(region + 10 * MIB, 9 * MIB / 8, 4 * MIB, 1, "there");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        CHECK(munmap(region + 10 * MIB, 2 * MIB) == 0, "the child's");
        all_ways();
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "child: %#x", status);
    all_ways();
    CHECK(open("/proc/self/maps", O_RDONLY | O_DIRECTORY) == -1 && errno == ENOTDIR, "no directory");
    return 0;
}
