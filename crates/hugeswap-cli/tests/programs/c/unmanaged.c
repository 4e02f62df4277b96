// Memory that is managed, and memory that is not: unmanaged WHAT MIB CHILDREN
//   small: MIB in small blocks, chunks: in blocks of 500 KiB, mapped: 1 GiB mapped of which MIB are touched; then CHILDREN are forked, which look at all of it
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long sum(const unsigned char *p, size_t n)
{
    unsigned long s = 0;
    for (size_t i = 0; i < n; i += 4096)
        s += p[i];
    return s;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t bytes = strtoul(argv[2], 0, 10) << 20;
    unsigned char *p = 0;
    size_t block = strcmp(argv[1], "small") ? 500 << 10 : 1000;
    if (strcmp(argv[1], "mapped")) {
        for (size_t n = 0; n < bytes; n += block)
            memset(malloc(block), 1, block);
    } else {
        p = mmap(0, 1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return 1;
        memset(p, 1, bytes);
    }
    int children = atoi(argv[3]);
    for (int i = 0; i < children; i++)
        if (fork() == 0) {
            if (p && sum(p, bytes) != bytes >> 12)
                _exit(1);
            usleep(1000000);
            _exit(0);
        }
    int status, bad = 0;
    while (wait(&status) > 0)
        bad |= status;
    puts(bad ? "bad" : "good");
    return bad != 0;
}
