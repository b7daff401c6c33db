/* Runs the loops of kernels.c on cases from standard input, for compilers that watch memory.

   A case is the twelve numbers of `Case`, then the arrays of the plan in the order of its fields, the
   images and the lines. Every array gets memory of exactly its size. What comes back on standard output
   is the result of the call, and the images. */

#include KERNELS

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int64_t channels, height, width, rows, count_x, count_y, count_lookups, has_taps, images, depth, scratch, scales;
} Case;

static void *read_bytes(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (memory == NULL || fread(memory, 1, size, stdin) != size) exit(3);
    return memory;
}

int main(void) {
    Case c;
    while (fread(&c, sizeof c, 1, stdin) == 1) {
        const size_t line = (size_t)(c.width + c.height) * 4, bytes = (size_t)(c.images * c.channels * c.height * c.width);
        const size_t taps_x = (size_t)((c.width + 1) * c.width) * LINE * 4, taps_y = (size_t)((c.height + 1) * c.height) * LINE * 4;
        Plan p;
        void *kept[] = {
            read_bytes((size_t)c.count_x * line), read_bytes((size_t)c.count_y * line),
            read_bytes((size_t)c.count_x), read_bytes((size_t)c.count_y),
            read_bytes((size_t)c.count_lookups * 256), read_bytes((size_t)c.count_lookups * 8),
            read_bytes((size_t)(c.rows * c.channels)), read_bytes((size_t)c.rows * 4), read_bytes((size_t)c.scales * 8),
            c.has_taps ? read_bytes(taps_x) : NULL, c.has_taps ? read_bytes(taps_y) : NULL,
            read_bytes(bytes), read_bytes((size_t)(c.images * c.depth) * LINE * 4),
        };
        memcpy(&p, kept, 11 * sizeof kept[0]);
        p.channels = c.channels, p.height = c.height, p.width = c.width;
        p.rows = c.rows, p.count_x = c.count_x, p.count_y = c.count_y, p.count_lookups = c.count_lookups;
        u8 *out = malloc(bytes ? bytes : 1), *work = malloc((size_t)c.scratch);
        memset(out, 0, bytes);
        const int64_t refused = NAMED(deepaa_apply_, LEVEL)(&p, kept[11], out, kept[12], c.depth, 0, c.images, work);
        fwrite(&refused, sizeof refused, 1, stdout);
        fwrite(out, 1, bytes, stdout);
        for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) free(kept[i]);
        free(out);
        free(work);
    }
    return 0;
}
