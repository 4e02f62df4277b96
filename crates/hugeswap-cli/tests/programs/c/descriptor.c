// Becomes the program that its arguments name, by a descriptor.
// descriptor open|closing|nameless PROG ARGS...
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 3)
        return 8;
    // Closed by exec, as descriptors are that nobody else is to have.
    int closing = strcmp(argv[1], "open") != 0;
    int fd = open(argv[2], O_RDONLY | (closing ? O_CLOEXEC : 0));
    if (fd >= 0 && !strcmp(argv[1], "nameless")) {
        int copy = memfd_create("copy", MFD_CLOEXEC);
        while (sendfile(copy, fd, NULL, 1 << 20) > 0)
            ;
        fd = copy;
    }
    fexecve(fd, argv + 2, environ);
    return 9;
}
