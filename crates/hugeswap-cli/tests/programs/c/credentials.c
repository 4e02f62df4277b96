// Changes users, groups and capabilities, from lists in managed memory: each change must reach every thread of the process, and
// every thread must have the same. Needs to be started by root.
#include "common.h"

#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const char *const FIELDS[] = {"Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:"};

static int over[2];

// Of a thread that has ended (which is listed a little longer) there are none.
static void read_rights(const char *tid, char *to, size_t room) {
    char path[300], line[1000];
    *to = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *f = fopen(path, "r");
    CHECK(f || errno == ENOENT, "%s", path);
    if (!f)
        return;
    size_t n = 0;
    while (fgets(line, sizeof line, f))
        for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
            if (!strncmp(line, FIELDS[i], strlen(FIELDS[i])))
                n += snprintf(to + n, room - n, "%s", line);
    fclose(f);
}

// Every thread has what this one has.
static void show(const char *after) {
    char own[4000], other[4000], tid[32];
    snprintf(tid, sizeof tid, "%d", (int)gettid());
    read_rights(tid, own, sizeof own);
    CHECK(*own, "its own rights");
    DIR *d = opendir("/proc/self/task");
    CHECK(d, "opendir");
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        read_rights(e->d_name, other, sizeof other);
        CHECK(!*other || !strcmp(own, other), "after %s thread %s has\n%snot\n%s", after, e->d_name, other, own);
    }
    closedir(d);
    printf("%s\n%s", after, own);
}

static void *sleeper(void *arg) {
    char c;
    while (read(over[0], &c, 1) < 0)
        CHECK(errno == EINTR, "read");
    return arg;
}

static struct {
    char *memory;
    size_t len;
    volatile int enough;
} written;

// Writes what is there again, page by page at random, so that pages are written to swap one by one.
static void *writer(void *arg) {
    uint64_t *words = (uint64_t *)written.memory, x = 88172645463325252;
    while (!written.enough) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        size_t i = x % (written.len / PAGE) * (PAGE / 8);
        words[i] = value(i, 4);
    }
    return arg;
}

// Changes while hugeswap's threads are at work, wherever each of them is just then.
static void change_under_way(char *memory, size_t len) {
    written.memory = memory;
    written.len = len;
    pthread_t t;
    CHECK(pthread_create(&t, NULL, writer, NULL) == 0, "pthread_create");
    for (int i = 0; i < 500; i++)
        CHECK(seteuid(1000) == 0 && seteuid(0) == 0, "change %d", i);
    written.enough = 1;
    CHECK(pthread_join(t, NULL) == 0, "pthread_join");
    show("changes under way");
}

static void keep_capabilities(void) { CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0, "prctl"); }

static int drop_effective(void) {
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } sets[2];
    CHECK(syscall(SYS_capget, &header, sets) == 0, "capget");
    sets[0].effective = sets[1].effective = 0;
    sets[0].permitted = 1 << 7 | 1 << 6;
    sets[1].permitted = 0;
    int capset(void *, const void *);
    return capset(&header, sets);
}

#define STEP(call, want)                                                                                             \
    do {                                                                                                             \
        CHECK((call) == (want), "%s", #call);                                                                        \
        show(#call);                                                                                                 \
    } while (0)

int main(int argc, char **argv) {
    CHECK(argc == 3, "how many MiB, how many threads");
    size_t len = strtoul(argv[1], 0, 0) * MIB, n = strtoul(argv[2], 0, 0);
    CHECK(pipe(over) == 0, "pipe");
    pthread_t threads[16];
    CHECK(n <= 16, "too many threads");
    for (size_t i = 0; i < n; i++)
        CHECK(pthread_create(threads + i, NULL, sleeper, NULL) == 0, "pthread_create");
    gid_t *list = malloc(2 * MIB);
    CHECK(list, "malloc");
    for (gid_t i = 0; i < 9; i++)
        list[i] = 100 + i;
    char *memory = malloc(len);
    CHECK(memory, "malloc");
    // Pushes the list out.
    fill(memory, len, 3);
    show("start");
    STEP(setgroups(9, list), 0);
    STEP(seteuid(1000), 0);
    CHECK(setgroups(5, list) == -1 && errno == EPERM, "without the right");
    STEP(seteuid(0), 0);
    fill(memory, len, 4);
    if (n > 0)
        change_under_way(memory, len);
    STEP(setgroups(5, list), 0);
    STEP(initgroups("daemon", 7), 0);
    STEP(setresgid(5, 6, 7), 0);
    STEP(setegid(7), 0);
    STEP(setreuid(-1, 0), 0);
    STEP(setgroups(0, NULL), 0);
    // (With other threads the C library's own would lose what this one keeps.)
    if (n == 0) {
        keep_capabilities();
        STEP(setresuid(1000, 1001, 1000), 0);
        STEP(drop_effective(), 0);
        STEP(setreuid(1001, 1000), 0);
    }
    STEP(setuid(1000), 0);
    verify(memory, len, 4, "at the end");
    for (size_t i = 0; i < n; i++)
        CHECK(write(over[1], "d", 1) == 1, "write");
    for (size_t i = 0; i < n; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    puts("done");
    return 0;
}
