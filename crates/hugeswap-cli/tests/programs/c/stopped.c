// Fills MIB of memory, more than the budget, says where it is, and then: stopped MIB wait|abort|fault
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t bytes = strtoul(argv[1], 0, 10) << 20;
    unsigned char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < bytes; i += 8)
        *(uint64_t *)(p + i) = i * 7 + 1;
    printf("%d %p\n", getpid(), (void *)p);
    fflush(stdout);
    if (!strcmp(argv[2], "abort"))
        abort();
    if (!strcmp(argv[2], "fault"))
        *(volatile int *)16 = 1;
    for (;;)
        pause();
}
