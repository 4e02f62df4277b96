/* growing BIG SMALL ROUNDS FILE: blocks of 8 MiB, BIG MiB in all, are gone through in each round. Beside them, in each round, small blocks grow
   to SMALL MiB and are freed, a forked child changes a part of the large ones, and FILE is read. Prints a checksum. */
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
#define BLOCK (8 * MIB)

static uint64_t sum;

static void fill(uint64_t *p, long bytes, uint64_t seed)
{
    for (long i = 0; i < bytes / 8; i++)
        p[i] = (seed + i) * 0x9e3779b97f4a7c15u;
}

static void add(const uint64_t *p, long bytes)
{
    for (long i = 0; i < bytes / 8; i += 8)
        sum = sum * 31 + p[i];
}

static void read_file(const char *path)
{
    static unsigned char buffer[65536];
    int fd = open(path, O_RDONLY);
    ssize_t n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        sum += buffer[n / 2];
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    long blocks = atol(argv[1]) * MIB / BLOCK, n = atol(argv[2]) * MIB / 496, rounds = atol(argv[3]);
    uint64_t **large = malloc(blocks * sizeof *large);
    for (long i = 0; i < blocks; i++) {
        large[i] = malloc(BLOCK);
        fill(large[i], BLOCK, i);
    }
    for (long r = 0; r < rounds; r++) {
        for (long i = 0; i < blocks; i++) {
            add(large[i], BLOCK);
            if (i % 3 == r % 3)
                fill(large[i], BLOCK, i + r);
        }
        char **small = malloc(n * sizeof *small + 1);
        for (long i = 0; i < n; i++) {
            small[i] = malloc(480);
            memset(small[i], (int)(i + r), 480);
        }
        for (long i = 0; i < n; i += 7)
            sum = sum * 31 + (unsigned char)small[i][i % 480];
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            sum = 0;
            for (long i = 0; i < blocks / 2; i++) {
                fill(large[i], BLOCK / 8, r);
                add(large[i], BLOCK / 4);
            }
            _exit((int)(sum & 63));
        }
        read_file(argv[4]);
        int status;
        waitpid(child, &status, 0);
        if (!WIFEXITED(status)) {
            printf("the child ended with %d\n", status);
            return 3;
        }
        sum = sum * 31 + WEXITSTATUS(status);
        for (long i = 0; i < n; i++)
            free(small[i]);
        free(small);
        malloc_trim(0);
    }
    printf("%016lx\n", (unsigned long)sum);
    return 0;
}
