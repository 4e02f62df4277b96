// Starts programs in every way, itself among them, also by way of /proc/self/exe, a script and a shell. Each of its own
// kind has more memory than the budget.
#include "common.h"
#include <limits.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LEN (48 * MIB)

extern char **environ;
static const char *ways[] = {"fork", "vfork", "posix_spawn"};

static uint64_t total(const uint8_t *p) {
    uint64_t all = 0;
    for (size_t i = 0; i < LEN; i += 512)
        all += p[i];
    return all;
}

static uint8_t *filled(int with) {
    uint8_t *p = malloc(LEN);
    CHECK(p, "malloc");
    memset(p, with, LEN);
    return p;
}

static void start(int way, char *const argv[]) {
    pid_t pid = -1;
    int status;
    if (way == 0 && (pid = fork()) == 0) {
        execvp(argv[0], argv);
        _exit(99);
    } else if (way == 1 && (pid = vfork()) == 0) {
        execvp(argv[0], argv);
        _exit(99);
    } else if (way == 2 && posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0) {
        printf("%s: %s: none\n", ways[way], argv[0]);
        return;
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "%s", ways[way]);
    printf("%s: %s: %#x\n", ways[way], argv[0], status);
}

int main(int argc, char **argv) {
    begin();
    if (argc > 2 && strcmp(argv[1], "again") == 0) {
        char exe[PATH_MAX] = {0};
        CHECK(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0, "readlink");
        CHECK(!getenv("HUGESWAP_PROGRAM"), "a variable of hugeswap's");
        printf("again %s %llu %s\n", argv[2], (unsigned long long)total(filled(3)), strrchr(exe, '/'));
        return atoi(argv[2]);
    }
    uint8_t *mine = filled(7);
    FILE *script = fopen("script", "w");
    CHECK(script, "a file here");
    fprintf(script, "#!%s again\n", argv[0]);
    fchmod(fileno(script), 0755);
    fclose(script);
    setenv("AGAIN", argv[0], 1);
    for (int way = 0; way < 3; way++) {
        start(way, (char *[]){"echo", "hello", NULL});
        start(way, (char *[]){argv[0], "again", "5", NULL});
        start(way, (char *[]){"/proc/self/exe", "again", "6", NULL});
        start(way, (char *[]){"sh", "-c", "head -c 40000000 /dev/zero | wc -c; \"$AGAIN\" again 7", NULL});
        start(way, (char *[]){"./script", "x", NULL});
        start(way, (char *[]){"./nothing", NULL});
    }
    printf("%llu\n", (unsigned long long)total(mine));
    return 0;
}
