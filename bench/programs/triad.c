// Loops over three arrays, with all processors; argument: 10^6 bytes, all together.
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    long n = (argc > 1 ? atol(argv[1]) : 600) * 1000000 / 24;
    double *a = malloc(n * 8), *b = malloc(n * 8), *c = malloc(n * 8);
    if (!a || !b || !c)
        return 1;
#pragma omp parallel for
    for (long i = 0; i < n; i++) {
        a[i] = i;
        b[i] = 2 * i;
        c[i] = 1;
    }
    for (int round = 0; round < 4; round++) {
#pragma omp parallel for
        for (long i = 0; i < n; i++)
            a[i] = b[i] + 0.5 * c[i] + 0.1 * a[i];
    }
    double sum = 0;
    for (long i = 0; i < n; i += 1000)
        sum += a[i];
    printf("%.6e\n", sum);
}
