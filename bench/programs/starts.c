/*
 * What it costs to start processes: fork alone, and posix_spawn, vfork and fork with an exec of /bin/true.
 *
 *     starts [ROUNDS [BATCH]]
 *
 * Prints, for each way, the median over ROUNDS batches of what one start takes, from the call until the child is
 * waited for: microseconds, microseconds of processor time, and page faults, of parent and child together. The ways
 * take turns, batch by batch.
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *const argv_true[] = {"/bin/true", NULL};

static pid_t by_fork(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    return pid;
}

static pid_t by_spawn(void)
{
    pid_t pid;
    return posix_spawn(&pid, argv_true[0], NULL, NULL, argv_true, environ) ? -1 : pid;
}

static pid_t by_vfork_exec(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        execve(argv_true[0], argv_true, environ);
        _exit(127);
    }
    return pid;
}

static pid_t by_fork_exec(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        execve(argv_true[0], argv_true, environ);
        _exit(127);
    }
    return pid;
}

static const struct {
    const char *name;
    pid_t (*start)(void);
} ways[] = {
    {"fork", by_fork},
    {"spawn", by_spawn},
    {"vfork_exec", by_vfork_exec},
    {"fork_exec", by_fork_exec},
};
enum { WAYS = sizeof ways / sizeof *ways };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

enum { WALL, CPU, FAULTS, FIGURES };

static double us_of(struct timeval t)
{
    return t.tv_sec * 1e6 + t.tv_usec;
}

static void look(double figures[FIGURES])
{
    struct rusage own, children;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    figures[WALL] = now_us();
    figures[CPU] = us_of(own.ru_utime) + us_of(own.ru_stime) + us_of(children.ru_utime) + us_of(children.ru_stime);
    figures[FAULTS] = own.ru_minflt + children.ru_minflt;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, n, sizeof *values, ascending);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 20, batch = argc > 2 ? atoi(argv[2]) : 50;
    double *all[WAYS][FIGURES];
    for (int w = 0; w < WAYS; w++)
        for (int f = 0; f < FIGURES; f++)
            all[w][f] = calloc(rounds, sizeof(double));
    for (int r = -1; r < rounds; r++)  /* The first round only warms up. */
        for (int w = 0; w < WAYS; w++) {
            double before[FIGURES], after[FIGURES];
            look(before);
            for (int i = 0; i < batch; i++) {
                int status;
                pid_t pid = ways[w].start();
                if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
                    perror(ways[w].name);
                    return 1;
                }
            }
            look(after);
            for (int f = 0; f < FIGURES && r >= 0; f++)
                all[w][f][r] = (after[f] - before[f]) / batch;
        }
    for (int w = 0; w < WAYS; w++)
        printf("%s %.1f us %.1f cpu_us %.1f faults\n", ways[w].name, median(all[w][WALL], rounds),
               median(all[w][CPU], rounds), median(all[w][FAULTS], rounds));
    return 0;
}
