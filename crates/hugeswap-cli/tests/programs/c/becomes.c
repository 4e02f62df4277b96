// Becomes the program that its arguments name.
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argc;
    execvp(argv[1], argv + 1);
    return 9;
}
