/* All layers of a draw for a range of images on the CPU: kernels_torch.py as C loops.

   Every function reads the same lines and constants (see plan.py) and must give the same bytes. It is
   compiled with -ffp-contract=off, because a fused multiply-add changes pixels. Images are planar:
   channel c of an image starts at c * height * width. Source and target never overlap.

   build_kernels.py compiles this file once for every processor could run it, and again for newer
   instructions: LEVEL is 0, 1 for AVX2, 2 for AVX-512. All copies go into one library, and kernels_c.py
   calls the best that `deepaa_level` allows. SOURCE is the checksum of this file. */

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "float expressions must be computed as floats: other bytes come out here"
#endif

#define JOINED(name, level) name##level
#define NAMED(name, level) JOINED(name, level)
#define PUBLIC __attribute__((visibility("default")))

typedef uint8_t u8;

enum { IDENTITY, GEOMETRY, LOOKUP, AUTO_CONTRAST, EQUALIZE, CONTRAST, COLOR, SHARPNESS, CUTOUT, RESIZED_CROP, CUSTOM };
enum { LINE = 6, TAPS = 5, BITS = 22 };

typedef struct {
    const int32_t *maps_x, *maps_y;   /* (., W + H): columns' terms, then rows' */
    const int8_t *steps;              /* per row of maps_x: +1 or -1 where columns rise or fall by one pixel */
    const int8_t *level;              /* per row of maps_y: 1 where the source row does not depend on x */
    const u8 *lookups;                /* (., 256) */
    const int32_t *forms;             /* (., 2): how a table is computed, and with what; see look_up */
    const u8 *fills;                  /* (T, C) */
    const float *factors;             /* (T,) */
    const double *scales;             /* (256,) */
    const int32_t *taps_x, *taps_y;   /* (size + 1, size, 6) */
    int64_t channels, height, width;
    int64_t rows, count_x, count_y, count_lookups;  /* of fills and factors, maps_x, maps_y, lookups */
} Plan;

/* Whether a line of the plan leads nowhere outside of its constants and of the image. */
static int fits(const int32_t *line, const Plan *p) {
    if ((uint32_t)line[5] >= (uint64_t)p->rows) return 0;
    switch (line[0]) {
    case GEOMETRY: return (uint32_t)line[1] < (uint64_t)p->count_x && (uint32_t)line[2] < (uint64_t)p->count_y;
    case LOOKUP: return (uint32_t)line[1] < (uint64_t)p->count_lookups;
    case CONTRAST:
    case COLOR: return p->channels == 1 || p->channels == 3;
    case CUTOUT: return line[1] >= 0 && line[2] >= 0;
    case RESIZED_CROP:
        return p->taps_x && p->taps_y && line[1] >= 0 && line[2] >= 0 && line[3] > 0 && line[4] > 0 &&
               line[3] <= p->width - line[1] && line[4] <= p->height - line[2];
    default: return line[0] >= IDENTITY && line[0] <= CUSTOM;
    }
}

/* The sum of two terms of a map; one that leaves the 32 bits wraps, and lies outside of the image. */
static inline int32_t place(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b) >> 16; }

static inline u8 clip(int32_t v) { return v < 0 ? 0 : v > 255 ? 255 : (u8)v; }

/* Pillow's blend: float32, truncated, clipped. */
static inline u8 blend(float base, float value, float factor) {
    float mixed = base + factor * (value - base);
    mixed = mixed < 0.0f ? 0.0f : mixed;
    mixed = mixed > 255.0f ? 255.0f : mixed;
    return (u8)(int32_t)mixed;
}

/* One line of pixels that lie next to each other in the source, forwards or backwards. */
static void copy_line(const u8 *restrict line, u8 *restrict out, int64_t width, int64_t first, int step, u8 fill) {
    /* places x with 0 <= first + step * x < width */
    int64_t begin = step > 0 ? -first : first - width + 1;
    int64_t end = step > 0 ? width - first : first + 1;
    begin = begin < 0 ? 0 : begin > width ? width : begin;
    end = end < begin ? begin : end > width ? width : end;
    memset(out, fill, (size_t)begin);
    if (step > 0)
        memcpy(out + begin, line + (first + begin), (size_t)(end - begin));
    else
        for (int64_t x = begin; x < end; x++) out[x] = line[first - x];
    memset(out + end, fill, (size_t)(width - end));
}

static void geometry(const u8 *restrict in, u8 *restrict out, const int32_t *line, const Plan *p, int32_t *restrict index) {
    const int64_t h = p->height, w = p->width, size = h * w;
    const int32_t *mx = p->maps_x + line[1] * (w + h), *my = p->maps_y + line[2] * (w + h);
    const u8 *fill = p->fills + line[5] * p->channels;
    const int step = p->steps[line[1]], level = p->level[line[2]];
    for (int64_t y = 0; y < h; y++) {
        const int32_t row_x = mx[w + y], row_y = my[w + y];
        if (level && step) {
            const int32_t from_y = place(my[0], row_y);
            const int64_t first = place(mx[0], row_x);
            for (int64_t c = 0; c < p->channels; c++) {
                u8 *target = out + c * size + y * w;
                if (from_y < 0 || from_y >= h)
                    memset(target, fill[c], (size_t)w);
                else
                    copy_line(in + c * size + from_y * w, target, w, first, step, fill[c]);
            }
            continue;
        }
        for (int64_t x = 0; x < w; x++) {
            const int32_t from_x = place(mx[x], row_x), from_y = place(my[x], row_y);
            const int inside = (from_x >= 0) & (from_x < w) & (from_y >= 0) & (from_y < h);
            index[x] = inside ? from_y * (int32_t)w + from_x : -1;
        }
        int64_t begin = 0, end = w;  /* a line crosses the source once, so what is inside is one piece */
        while (begin < w && index[begin] < 0) begin++;
        while (end > begin && index[end - 1] < 0) end--;
        for (int64_t c = 0; c < p->channels; c++) {
            const u8 *restrict plane = in + c * size;
            u8 *restrict target = out + c * size + y * w;
            memset(target, fill[c], (size_t)begin);
            for (int64_t x = begin; x < end; x++) target[x] = plane[index[x]];
            memset(target + end, fill[c], (size_t)(w - end));
        }
    }
}

static void through_table(const u8 *restrict in, u8 *restrict out, const u8 *table, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = table[in[i]];
}

/* Tables that are simple expressions are computed, which vectorises; form 0 looks values up. */
static void look_up(const u8 *restrict in, u8 *restrict out, const int32_t *line, const Plan *p, int64_t n) {
    const int32_t form = p->forms[2 * line[1]], argument = p->forms[2 * line[1] + 1];
    if (form == 1) {  /* keep the bits of a mask */
        const u8 mask = (u8)argument;
        for (int64_t i = 0; i < n; i++) out[i] = in[i] & mask;
    } else if (form == 2) {  /* invert values above a limit */
        const u8 limit = (u8)argument;
        for (int64_t i = 0; i < n; i++) out[i] = in[i] > limit ? (u8)(255 - in[i]) : in[i];
    } else if (form == 3) {  /* invert all */
        for (int64_t i = 0; i < n; i++) out[i] = (u8)(255 - in[i]);
    } else if (form == 4) {  /* brightness */
        const float factor = p->factors[line[5]];
        for (int64_t i = 0; i < n; i++) out[i] = blend(0.0f, (float)in[i], factor);
    } else {
        through_table(in, out, p->lookups + line[1] * 256, n);
    }
}

static void auto_contrast(const u8 *restrict in, u8 *restrict out, const Plan *p, int64_t size) {
    u8 low = 255, high = 0, table[256];
    for (int64_t i = 0; i < size; i++) {
        low = in[i] < low ? in[i] : low;
        high = in[i] > high ? in[i] : high;
    }
    if (high <= low) {
        memcpy(out, in, (size_t)size);
        return;
    }
    const double scale = p->scales[high - low], offset = -(double)low * scale;
    for (int i = 0; i < 256; i++) {
        const double product = (double)i * scale;
        const double value = product + offset;
        table[i] = value < 0.0 ? 0 : value > 255.0 ? 255 : (u8)(int32_t)value;
    }
    through_table(in, out, table, size);
}

static void equalize(const u8 *restrict in, u8 *restrict out, int64_t size) {
    int32_t counts[4][256] = {{0}};  /* four, so that equal neighbours do not wait for each other */
    int64_t i = 0;
    for (; i + 4 <= size; i += 4)
        for (int k = 0; k < 4; k++) counts[k][in[i + k]]++;
    for (; i < size; i++) counts[0][in[i]]++;
    int last = 0;
    for (int v = 0; v < 256; v++) {
        counts[0][v] += counts[1][v] + counts[2][v] + counts[3][v];
        if (counts[0][v]) last = v;
    }
    const int64_t step = (size - counts[0][last]) / 255;
    if (step == 0) {
        memcpy(out, in, (size_t)size);
        return;
    }
    u8 table[256];
    int64_t sum = step / 2;
    for (int v = 0; v < 256; v++) {
        const int64_t value = sum / step;
        table[v] = value > 255 ? 255 : (u8)value;
        sum += counts[0][v];
    }
    through_table(in, out, table, size);
}

static inline int32_t luma(const u8 *in, int64_t i, int64_t size, int64_t channels) {
    if (channels == 1) return in[i];
    return (19595 * in[i] + 38470 * in[size + i] + 7471 * in[2 * size + i] + 32768) >> 16;
}

static void contrast(const u8 *restrict in, u8 *restrict out, float factor, int64_t channels, int64_t size) {
    int64_t total = 0;
    for (int64_t start = 0; start < size; start += 4096) {
        int32_t part = 0;  /* 4096 * 255 fits, and 32 bits vectorise better than 64 */
        const int64_t end = start + 4096 < size ? start + 4096 : size;
        for (int64_t i = start; i < end; i++) part += luma(in, i, size, channels);
        total += part;
    }
    const float mean = (float)((2 * total + size) / (2 * size));
    for (int64_t i = 0; i < channels * size; i++) out[i] = blend(mean, (float)in[i], factor);
}

static void color(const u8 *restrict in, u8 *restrict out, float factor, int64_t channels, int64_t size) {
    if (channels == 1) {
        memcpy(out, in, (size_t)size);
        return;
    }
    u8 *restrict red = out, *restrict green = out + size, *restrict blue = out + 2 * size;
    for (int64_t i = 0; i < size; i++) {
        const float grey = (float)luma(in, i, size, channels);
        red[i] = blend(grey, (float)in[i], factor);
        green[i] = blend(grey, (float)in[size + i], factor);
        blue[i] = blend(grey, (float)in[2 * size + i], factor);
    }
}

static void sharpness(const u8 *restrict in, u8 *restrict out, float factor, int64_t h, int64_t w) {
    if (h < 3 || w < 3) {
        memcpy(out, in, (size_t)(h * w));
        return;
    }
    /* One long run over all inner lines vectorises best; it spoils the border columns, copied after. */
    const int64_t size = h * w;
    for (int64_t i = w + 1; i < size - w - 1; i++) {
        const int32_t total = in[i - w - 1] + in[i - w] + in[i - w + 1] + in[i - 1] + 5 * in[i] +
                              in[i + 1] + in[i + w - 1] + in[i + w] + in[i + w + 1];
        const int32_t smooth = (2 * total + 13) / 26;  /* floor(total / 13 + 1/2) */
        out[i] = blend((float)smooth, (float)in[i], factor);
    }
    memcpy(out, in, (size_t)w);
    for (int64_t y = 1; y < h - 1; y++) {
        out[y * w] = in[y * w];
        out[y * w + w - 1] = in[y * w + w - 1];
    }
    memcpy(out + size - w, in + size - w, (size_t)w);
}

static void cutout(const u8 *restrict in, u8 *restrict out, const int32_t *line, const Plan *p) {
    const int64_t h = p->height, w = p->width, size = h * w;
    const int64_t left = line[1], right = line[3] < w ? line[3] : w - 1;
    const int64_t top = line[2], bottom = line[4] < h ? line[4] : h - 1;
    memcpy(out, in, (size_t)(p->channels * size));
    if (left > right) return;
    for (int64_t c = 0; c < p->channels; c++)
        for (int64_t y = top; y <= bottom; y++)
            memset(out + c * size + y * w + left, p->fills[line[5] * p->channels + c], (size_t)(right - left + 1));
}

static inline u8 to_byte(int32_t total) { return clip(total >> BITS); }

static void resized_crop(const u8 *restrict in, u8 *restrict out, const int32_t *line, const Plan *p, u8 *wide) {
    const int64_t h = p->height, w = p->width;
    const int64_t left = line[1], top = line[2], box_w = line[3], box_h = line[4];
    const int32_t *taps_x = p->taps_x + box_w * w * LINE, *taps_y = p->taps_y + box_h * h * LINE;
    for (int64_t c = 0; c < p->channels; c++) {
        for (int64_t y = 0; y < box_h; y++) {  /* along x, rounded to bytes */
            const u8 *source = in + c * h * w + (top + y) * w + left;
            for (int64_t x = 0; x < w; x++) {
                const int32_t *tap = taps_x + x * LINE;
                int32_t total = 1 << (BITS - 1);
                for (int t = 0; t < TAPS; t++) {
                    const int64_t from = tap[0] + t < box_w ? tap[0] + t : box_w - 1;
                    total += source[from] * tap[1 + t];  /* weights beyond the box are 0 */
                }
                wide[y * w + x] = to_byte(total);
            }
        }
        for (int64_t y = 0; y < h; y++) {  /* then along y */
            const int32_t *tap = taps_y + y * LINE;
            const u8 *rows[TAPS];
            for (int t = 0; t < TAPS; t++) rows[t] = wide + (tap[0] + t < box_h ? tap[0] + t : box_h - 1) * w;
            u8 *target = out + c * h * w + y * w;
            for (int64_t x = 0; x < w; x++) {
                int32_t total = 1 << (BITS - 1);
                for (int t = 0; t < TAPS; t++) total += rows[t][x] * tap[1 + t];
                target[x] = to_byte(total);
            }
        }
    }
}

static void layer(const u8 *restrict in, u8 *restrict out, const int32_t *line, const Plan *p, u8 *work) {
    const int64_t channels = p->channels, size = p->height * p->width;
    const float factor = p->factors[line[5]];
    switch (line[0]) {
    case GEOMETRY: geometry(in, out, line, p, (int32_t *)work); break;
    case LOOKUP: look_up(in, out, line, p, channels * size); break;
    case AUTO_CONTRAST:
        for (int64_t c = 0; c < channels; c++) auto_contrast(in + c * size, out + c * size, p, size);
        break;
    case EQUALIZE:
        for (int64_t c = 0; c < channels; c++) equalize(in + c * size, out + c * size, size);
        break;
    case CONTRAST: contrast(in, out, factor, channels, size); break;
    case COLOR: color(in, out, factor, channels, size); break;
    case SHARPNESS:
        for (int64_t c = 0; c < channels; c++)
            sharpness(in + c * size, out + c * size, factor, p->height, p->width);
        break;
    case CUTOUT: cutout(in, out, line, p); break;
    case RESIZED_CROP: resized_crop(in, out, line, p, work); break;
    default: memcpy(out, in, (size_t)(channels * size));
    }
}

/* Images [begin, end) under `depth` lines each. `work` holds an image, then a plane and a line of indices.
   Returns -1, or the first image with a line that does not fit; nothing is written for it and those after it. */
PUBLIC int64_t NAMED(deepaa_apply_, LEVEL)(const Plan *p, const u8 *images, u8 *out, const int32_t *lines, int64_t depth,
                                           int64_t begin, int64_t end, u8 *work) {
    const int64_t bytes = p->channels * p->height * p->width;
    for (int64_t n = begin; n < end; n++) {
        const int32_t *mine = lines + n * depth * LINE;
        const u8 *source = images + n * bytes;
        int64_t left = 0;  /* layers that still change the image; the last of them writes to `out` */
        for (int64_t k = 0; k < depth; k++) {
            if (!fits(mine + k * LINE, p)) return n;
            left += mine[k * LINE] != IDENTITY;
        }
        if (left == 0) memcpy(out + n * bytes, source, (size_t)bytes);
        for (int64_t k = 0; k < depth; k++) {
            if (mine[k * LINE] == IDENTITY) continue;
            u8 *target = left % 2 ? out + n * bytes : work;
            layer(source, target, mine + k * LINE, p, work + ((bytes + 63) / 64) * 64);
            source = target;
            left--;
        }
    }
    return -1;
}

/* Where byte k of a pixel of four lies in its word: whole words vectorise, bytes four apart do not. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SHIFT(k) (8 * (k))
#else
#define SHIFT(k) (24 - 8 * (k))
#endif

/* Planes of an image of three channels whose pixels lie `pixel` bytes apart, 3 or 4. */
static void split(const u8 *restrict in, u8 *restrict out, int64_t size, int64_t pixel) {
    u8 *restrict red = out, *restrict green = out + size, *restrict blue = out + 2 * size;
    if (pixel == 3) {
        for (int64_t i = 0; i < size; i++) red[i] = in[3 * i], green[i] = in[3 * i + 1], blue[i] = in[3 * i + 2];
        return;
    }
    for (int64_t i = 0; i < size; i++) {
        uint32_t word;
        memcpy(&word, in + 4 * i, 4);
        red[i] = (u8)(word >> SHIFT(0)), green[i] = (u8)(word >> SHIFT(1)), blue[i] = (u8)(word >> SHIFT(2));
    }
}

/* The way back; a fourth byte is 255, as Pillow sets it. */
static void join(const u8 *restrict in, u8 *restrict out, int64_t size, int64_t pixel) {
    const u8 *restrict red = in, *restrict green = in + size, *restrict blue = in + 2 * size;
    if (pixel == 3) {
        for (int64_t i = 0; i < size; i++) out[3 * i] = red[i], out[3 * i + 1] = green[i], out[3 * i + 2] = blue[i];
        return;
    }
    for (int64_t i = 0; i < size; i++) {
        const uint32_t word = (uint32_t)red[i] << SHIFT(0) | (uint32_t)green[i] << SHIFT(1) |
                              (uint32_t)blue[i] << SHIFT(2) | (uint32_t)255 << SHIFT(3);
        memcpy(out + 4 * i, &word, 4);
    }
}

/* One image, planar for a `pixel` of 1, else of three channels with pixels 3 or 4 bytes apart.
   Returns -1, 0 for a line that does not fit, or -2 without memory to work in; then nothing is written. */
PUBLIC int64_t NAMED(deepaa_single_, LEVEL)(const Plan *p, const u8 *image, u8 *out, const int32_t *lines, int64_t depth,
                                            int64_t pixel) {
    const int64_t size = p->height * p->width, bytes = ((p->channels * size + 63) / 64) * 64;
    const int64_t scratch = ((bytes + size + 4 * p->width + 63) / 64) * 64;
    if (pixel != 1 && (p->channels != 3 || (pixel != 3 && pixel != 4))) return 0;
    u8 *const work = malloc((size_t)(scratch + (pixel == 1 ? 0 : 2 * bytes)));
    if (!work) return -2;
    int64_t refused;
    if (pixel == 1) {
        refused = NAMED(deepaa_apply_, LEVEL)(p, image, out, lines, depth, 0, 1, work);
    } else {
        u8 *const planes = work + scratch, *const done = planes + bytes;
        split(image, planes, size, pixel);
        refused = NAMED(deepaa_apply_, LEVEL)(p, planes, done, lines, depth, 0, 1, work);
        if (refused < 0) join(done, out, size, pixel);
    }
    free(work);
    return refused;
}

#if LEVEL == 0
/* The source that was compiled; kernels_c.py looks for it in the file. */
PUBLIC const char deepaa_source[] = "deepaa kernels.c " SOURCE;

/* The highest LEVEL that this processor and its system can run. */
PUBLIC int deepaa_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
    return avx2 ? avx512 ? 2 : 1 : 0;
#else
    return 0;
#endif
}
#endif
