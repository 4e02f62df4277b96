// What a program has unmapped stays unmapped until it maps something itself: nobody else takes its addresses.
// hole BALLAST_MIB
#include "common.h"

#define LEN (32 * MIB)

// A line of /proc/self/maps that says of a part of the range that it is mapped.
static void must_be_empty(const char *p, const char *when) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "/proc/self/maps");
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2, "%s", line);
        CHECK(to <= (size_t)p || from >= (size_t)p + LEN, "%s, in %p to %p: %s", when, (void *)p, (void *)(p + LEN), line);
    }
    fclose(maps);
}

int main(int argc, char **argv) {
    CHECK(argc == 2, "hole BALLAST_MIB");
    begin();
    FILE *file = tmpfile();
    CHECK(file && ftruncate(fileno(file), LEN + PAGE) == 0, "a file");
    // The kernel gives what lies highest, and gives it again to who maps next. (One page stays: the ballast is too long to go there.)
    char *p = mmap(NULL, LEN + PAGE, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    CHECK(p != MAP_FAILED, "mmap");
    p += PAGE;
    CHECK(munmap(p, LEN) == 0, "munmap");
    must_be_empty(p, "at once");
    ballast((size_t)atoi(argv[1]) * MIB);
    must_be_empty(p, "in use");
    for (int i = 0; i < 3; i++)
        push_out();
    must_be_empty(p, "swapped");
    puts("nothing is mapped there");
    done();
    return 0;
}
