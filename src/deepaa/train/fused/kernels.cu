// Training of wide residual networks in bfloat16: batch norm, ReLU and a convolution as one pass over
// memory, forward and backward.
//
// Images are (N, H, W, C), weights (outputs, taps, inputs), both bfloat16; statistics and sums are
// float. A block of threads brings a tile of rows into shared memory once, with the border that
// the taps need, and the tensor cores read it nine times from there, moved by each tap. All sums have
// an order that never changes. `kernels.py` says what a kernel is compiled for.

typedef unsigned short bf16;
typedef unsigned int u32;

// A pixel in shared memory has 8 numbers more than channels: the 8 addresses of an ldmatrix then lie
// in different banks.
constexpr int GAP = 8;

#ifndef EMULATED
__device__ inline float low(u32 v) { return __uint_as_float(v << 16); }
__device__ inline float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ inline u32 pack(float first, float second) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(second), "f"(first));
    return v;
}
__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ inline void load_matrices(u32 (&r)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}
__device__ inline void load_transposed(u32 (&r)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}
__device__ inline void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes into shared memory without waiting; zeros where `inside` is false
__device__ inline void fetch(bf16* to, const bf16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ inline void wait_groups() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
#endif

__device__ inline void unpack(float (&out)[8], uint4 v) {
    out[0] = low(v.x), out[1] = high(v.x), out[2] = low(v.y), out[3] = high(v.y);
    out[4] = low(v.z), out[5] = high(v.z), out[6] = low(v.w), out[7] = high(v.w);
}
__device__ inline uint4 packed(const float (&v)[8]) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}
__device__ inline uint4 read16(const bf16* p) { return *(const uint4*)p; }
__device__ inline void write16(bf16* p, uint4 v) { *(uint4*)p = v; }
__device__ inline void read8(float (&out)[8], const float* p) {
    for (int i = 0; i < 8; i++) out[i] = p[i];
}

// Batch norm and ReLU of 8 channels: `norm` has mean, deviation^-1, scale, shift, C numbers each.
struct Activation {
    float scale[8], shift[8];
    __device__ inline Activation(const float* norm, int channels, int first) {
        read8(scale, norm + 2 * channels + first), read8(shift, norm + 3 * channels + first);
    }
    __device__ inline uint4 operator()(uint4 v) const {
        float x[8];
        unpack(x, v);
        for (int i = 0; i < 8; i++) {
            const float y = fmaf(x[i], scale[i], shift[i]);
            x[i] = y <= 0.f ? 0.f : y;  // what is no number stays none
        }
        return packed(x);
    }
};

enum Mode {
    FORWARD,  // activate, convolve, add; sums of the outputs and of their squares
    BACKWARD,  // the gradient in the input of the activation; sums of it, and of it times the input
    PLAIN_BACKWARD,  // the gradient behind the activation
};

// IMGS x IR x IC pixels of images (N, IH, IW, K) in shared memory, KT channels of each from `first`.
//
// With STEP 2 there is a row and a column of zeros between any two of the images.
template <int K, int KT, int IH, int IW, int STEP, int IR, int IC, int IMGS, int THREADS>
struct Pixels {
    static constexpr int PITCH = KT + GAP, SIZE = IMGS * IR * IC * PITCH, CHUNKS = KT / 8;
    static_assert(THREADS % CHUNKS == 0, "a thread keeps its channels");

    // Calls f(place in shared memory, address in x, whether there is such a pixel) for each chunk of a thread.
    template <typename F> static __device__ inline void each(int image, int top, int left, int first, F f) {
        const int channel = threadIdx.x % CHUNKS * 8;
#pragma unroll 4
        for (int pixel = threadIdx.x / CHUNKS; pixel < IMGS * IR * IC; pixel += THREADS / CHUNKS) {
            const int column = pixel % IC + left, row = pixel / IC % IR + top, which = pixel / (IC * IR);
            const bool on = STEP == 1 || (row % STEP == 0 && column % STEP == 0);
            const bool inside = on && row >= 0 && row < IH * STEP && column >= 0 && column < IW * STEP;
            const int at = (((image + which) * IH + row / STEP) * IW + column / STEP) * K + first + channel;
            f(pixel * PITCH + channel, at, inside);
        }
    }
    // The pixels from row `top` and column `left`, which arrive later; zeros where there are none.
    static __device__ inline void load(bf16* tile, const bf16* x, int image, int top, int left, int first) {
        each(image, top, left, first, [=](int place, int at, bool inside) {
            fetch(tile + place, inside ? x + at : x, inside);
        });
    }
    // Batch norm and ReLU of what this thread has loaded.
    static __device__ inline void activate(bf16* tile, const float* norm, int image, int top, int left, int first) {
        const Activation active(norm, K, first + (int)threadIdx.x % CHUNKS * 8);
        each(image, top, left, first, [&](int place, int, bool inside) {
            if (inside) write16(tile + place, active(read16(tile + place)));
        });
    }
};

// A convolution with TAPS = 9 or 1, K channels to N of which a block of threads makes NB.
//
// STEP 2: the inputs are gradients of a convolution of stride 2. A block makes one tile after the other, each
// BH rows of IMGS images, with WM x WN warps of MT x NT times 16 pixels by 8 channels. With two BUFFERS the
// next tile arrives while one is multiplied.
template <int MODE, int K, int N, int NB, int IH, int IW, int STRIDE, int STEP, int TAPS, int BH,
          int IMGS, int BUFFERS, int WM, int WN, int MT, int NT>
struct Convolution {
    static constexpr int OH = IH * STEP / STRIDE, OW = IW * STEP / STRIDE;
    static constexpr int PAD = TAPS == 9 ? 1 : 0, SIDE = TAPS == 9 ? 3 : 1;
    static constexpr int IR = (BH - 1) * STRIDE + SIDE, IC = (OW - 1) * STRIDE + SIDE;
    static constexpr int WARPS = WM * WN, THREADS = WARPS * 32, M = IMGS * BH * OW;
    static constexpr bool BACK = MODE != FORWARD;
    using Tile = Pixels<K, K, IH, IW, STEP, IR, IC, IMGS, THREADS>;
    static constexpr int WROWS = BACK ? K : NB, WPITCH = (BACK ? NB : K) + GAP;
    static constexpr int WEIGHTS = TAPS * WROWS * WPITCH;
    static constexpr int OPITCH = NT * 8 + GAP, OUTPUT = 16 * OPITCH;  // of a warp
    static constexpr int SHARED = 2 * (BUFFERS * Tile::SIZE + WEIGHTS + WARPS * OUTPUT);
    static_assert(M == WM * MT * 16 && NB == WN * NT * 8 && NT > 1 && (NT & (NT - 1)) == 0, "warps cover the tile");
    static_assert(OH % BH == 0 && (IMGS == 1 || BH == OH), "whole tiles");
    static_assert(K % 16 == 0 && 4 * WM * NB <= WEIGHTS, "whole chunks, and room for the sums");

    static __device__ inline void load_weights(bf16* to, const bf16* w, int taps, int first) {
        constexpr int CHUNKS = (BACK ? NB : K) / 8;
        for (int i = threadIdx.x; i < taps * WROWS * CHUNKS; i += THREADS) {
            const int chunk = i % CHUNKS, row = i / CHUNKS % WROWS, tap = i / (CHUNKS * WROWS);
            // w is (outputs, taps, inputs) of the forward convolution
            const int at = BACK ? (row * TAPS + tap) * N + first + chunk * 8
                                : ((first + row) * TAPS + tap) * K + chunk * 8;
            fetch(to + (tap * WROWS + row) * WPITCH + chunk * 8, w + at, true);
        }
    }
    static __device__ inline void load_tile(bf16* to, const bf16* x, int tile) {
        Tile::load(to, x, tile / (OH / BH) * IMGS, tile % (OH / BH) * BH * STRIDE - PAD, -PAD, 0);
    }

    static __device__ inline void run(const bf16* x, const bf16* w, const float* norm, const bf16* add,
                               const bf16* input, const float* input_norm, bf16* y, float* sums, int tiles) {
        extern __shared__ __align__(16) unsigned char shared[];
        bf16* buffers = (bf16*)shared;
        bf16* weights = buffers + BUFFERS * Tile::SIZE;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int m0 = warp / WN * MT * 16, n0 = warp % WN * NT * 8;
        const int first = blockIdx.y * NB;
        bf16* output = weights + WEIGHTS + warp * OUTPUT;

        constexpr int GROUPS = TAPS == 9 ? 3 : 1;  // taps of which the weights come together
        load_tile(buffers, x, blockIdx.x);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            constexpr int EACH = TAPS / GROUPS;
            // backward, the last taps come first
            const int from = (BACK ? GROUPS - 1 - group : group) * EACH;
            load_weights(weights + from * WROWS * WPITCH, w + from * (BACK ? N : K), EACH, first);
            end_group();
        }
        int pixels[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            const int m = m0 + mt * 16 + lane % 16;
            const int column = m % OW, row = m / OW % BH, which = m / (OW * BH);
            pixels[mt] = ((which * IR + row * STRIDE) * IC + column * STRIDE) * Tile::PITCH + lane / 16 * 8;
        }
        const bf16* columns = BACK ? weights + (lane % 16) * WPITCH + n0 + lane / 16 * 8
                                   : weights + (n0 + lane % 8 + lane / 16 * 8) * WPITCH + lane / 8 % 2 * 8;

        // Of 16 pixels by NT x 8 channels, a thread has UNITS times 8 channels of a pixel, always the same channels.
        constexpr int UNITS = NT / 2;
        const int place = lane % NT * 8, channel = first + n0 + place;
        float sum[8] = {}, product[8] = {};

        for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn++) {
            bf16* now = buffers + (BUFFERS == 2 ? turn % 2 * Tile::SIZE : 0);
            bf16* next = buffers + (BUFFERS == 2 ? (turn + 1) % 2 * Tile::SIZE : 0);
            const int image = tile / (OH / BH) * IMGS, top = tile % (OH / BH) * BH;
            const bool more = tile + gridDim.x < tiles;
            if (turn == 0) wait_groups<GROUPS - 1>();
            else wait_groups<0>();
            if (!BACK) Tile::activate(now, norm, image, top * STRIDE - PAD, -PAD, 0);
            __syncthreads();
            if (BUFFERS == 2) {
                if (more) load_tile(next, x, tile + gridDim.x);
                end_group();
            }

            float total[MT][NT][4] = {};
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                if (group > 0 && turn == 0) {
                    if (group == 1) wait_groups<BUFFERS>();
                    else wait_groups<BUFFERS - 1>();
                    __syncthreads();
                }
                u32 a[2][MT][4], b[2][NT / 2][4];  // what is multiplied, and what comes next
                constexpr int STEPS = SIDE * (K / 16);
#pragma unroll
                for (int step = 0; step <= STEPS; step++) {
                    if (step < STEPS) {
                        const int side = step / (K / 16), k = step % (K / 16) * 16;
                        const bf16* moved = now + (group * IC + side) * Tile::PITCH + k;
                        const int tap = BACK ? TAPS - 1 - (group * SIDE + side) : group * SIDE + side;
#pragma unroll
                        for (int mt = 0; mt < MT; mt++) load_matrices(a[step % 2][mt], moved + pixels[mt]);
#pragma unroll
                        for (int nt = 0; nt < NT / 2; nt++) {
                            if (BACK)
                                load_transposed(b[step % 2][nt], columns + (tap * WROWS + k) * WPITCH + nt * 16);
                            else
                                load_matrices(b[step % 2][nt], columns + (tap * WROWS + nt * 16) * WPITCH + k);
                        }
                    }
                    if (step > 0) {
                        const int last = (step - 1) % 2;
#pragma unroll
                        for (int mt = 0; mt < MT; mt++)
#pragma unroll
                            for (int nt = 0; nt < NT; nt++)
                                multiply(total[mt][nt], a[last][mt], b[last][nt / 2][nt % 2 * 2],
                                         b[last][nt / 2][nt % 2 * 2 + 1]);
                    }
                }
            }
            if (BUFFERS == 1) {
                __syncthreads();  // the tile has been read
                if (more) load_tile(next, x, tile + gridDim.x);
                end_group();
            }

            // the pixels of a tile follow each other
            const int start = (image * OH + top) * OW + m0 + lane / NT;
            uint4 others[MT][UNITS];
            const bf16* other = MODE == BACKWARD ? input : add;
            if (MODE != PLAIN_BACKWARD && other) {
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int unit = 0; unit < UNITS; unit++)
                        others[mt][unit] = read16(other + (start + mt * 16 + unit * (32 / NT)) * N + channel);
            }
            float scale[8], shift[8], mean[8], inverse[8];
            if (MODE == BACKWARD) {
                read8(mean, input_norm + channel), read8(inverse, input_norm + N + channel);
                read8(scale, input_norm + 2 * N + channel), read8(shift, input_norm + 3 * N + channel);
            }
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                __syncwarp();
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        *(u32*)(output + (half * 8 + lane / 4) * OPITCH + nt * 8 + lane % 4 * 2) =
                            pack(total[mt][nt][2 * half], total[mt][nt][2 * half + 1]);
                __syncwarp();
#pragma unroll
                for (int unit = 0; unit < UNITS; unit++) {
                    const int m = lane / NT + unit * (32 / NT);
                    const int at = (start + mt * 16 + unit * (32 / NT)) * N + channel;
                    uint4 raw = read16(output + m * OPITCH + place);
                    if (MODE == PLAIN_BACKWARD) {
                        write16(y + at, raw);
                        continue;
                    }
                    float v[8], u[8] = {};
                    unpack(v, raw);
                    if (add) {
                        unpack(u, MODE == BACKWARD ? read16(add + at) : others[mt][unit]);
                        for (int i = 0; i < 8; i++) v[i] += u[i];
                    }
                    if (MODE == BACKWARD) {
                        unpack(u, others[mt][unit]);
                        for (int i = 0; i < 8; i++)
                            if (fmaf(u[i], scale[i], shift[i]) <= 0.f) v[i] = 0.f;
                    }
                    raw = packed(v);
                    write16(y + at, raw);
                    unpack(v, raw);  // what others will read
                    for (int i = 0; i < 8; i++) {
                        sum[i] += v[i];
                        product[i] += v[i] * (MODE == BACKWARD ? (u[i] - mean[i]) * inverse[i] : v[i]);
                    }
                }
            }
        }
        if (MODE == PLAIN_BACKWARD) return;

        __syncthreads();  // the weights are not needed any more
        float* room = (float*)weights;  // (2, WM, NB)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int step = NT; step < 32; step *= 2) {
                sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
                product[i] += __shfl_xor_sync(0xffffffffu, product[i], step);
            }
        if (lane < NT)
            for (int i = 0; i < 8; i++) {
                room[warp / WN * NB + n0 + place + i] = sum[i];
                room[(WM + warp / WN) * NB + n0 + place + i] = product[i];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * NB; i += THREADS) {
            float all = 0.f;
            for (int each = 0; each < WM; each++) all += room[(i / NB * WM + each) * NB + i % NB];
            sums[(blockIdx.x * 2 + i / NB) * N + first + i % NB] = all;
        }
    }
};

// The gradient of the weights: gradients of COT of CO outputs against CIT of CI inputs.
//
// blockIdx.x is one of the parts that the images are cut into, blockIdx.y says which channels and, for ROWS
// = 1, which row of taps. Each of GROUPS of warps takes every GROUPS-th run of 16 pixels.
template <int CO, int CI, int COT, int CIT, int IH, int IW, int STRIDE, int TAPS, int ROWS, int BH,
          int BUFFERS, int GROUPS>
struct WeightGradient {
    static constexpr int OH = IH / STRIDE, OW = IW / STRIDE;
    static constexpr int PAD = TAPS == 9 ? 1 : 0, SIDE = TAPS == 9 ? 3 : 1;
    static constexpr int IR = (BH - 1) * STRIDE + ROWS, IC = (OW - 1) * STRIDE + SIDE;
    static constexpr int NI = CIT < 32 ? CIT : 32;  // inputs of a warp
    static constexpr int UNITS = ROWS * (COT / 32) * (CIT / NI), THREADS = UNITS * GROUPS * 32;
    using Tile = Pixels<CI, CIT, IH, IW, 1, IR, IC, 1, THREADS>;
    using Gradient = Pixels<CO, COT, OH, OW, 1, BH, OW, 1, THREADS>;
    static constexpr int BUFFER = Tile::SIZE + Gradient::SIZE;
    static constexpr int PLACE = SIDE * 32 * NI;  // numbers of a warp
    static constexpr int BYTES = 2 * BUFFERS * BUFFER, ROOM = 4 * UNITS * PLACE;
    static constexpr int SHARED = GROUPS > 1 && ROOM > BYTES ? ROOM : BYTES;
    static_assert(OH % BH == 0 && BH * OW % 16 == 0, "whole runs of pixels");

    static __device__ inline void run(const bf16* dy, const bf16* x, const float* norm, float* part,
                                      int count, int each) {
        extern __shared__ __align__(16) unsigned char shared[];
        bf16* buffers = (bf16*)shared;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int unit = warp % UNITS, mine = warp / UNITS;
        const int row = unit % ROWS, co = unit / ROWS % (COT / 32) * 32;
        const int ci = unit / (ROWS * (COT / 32)) * NI;
        const int which = blockIdx.y / (SIDE / ROWS), row0 = ROWS == 1 ? blockIdx.y % SIDE : 0;
        const int first_out = which % (CO / COT) * COT, first_in = which / (CO / COT) * CIT;
        const int end = min((int)(blockIdx.x * each + each), count);
        const auto load = [=](int block, bf16* to) {
            const int image = block / (OH / BH), top = block % (OH / BH) * BH;
            Tile::load(to, x, image, top * STRIDE + row0 - PAD, -PAD, first_in);
            Gradient::load(to + Tile::SIZE, dy, image, top, 0, first_out);
        };

        float total[SIDE][2][NI / 8][4] = {};
        load(blockIdx.x * each, buffers);
        end_group();
        for (int block = blockIdx.x * each, turn = 0; block < end; block++, turn++) {
            bf16* tile = buffers + (BUFFERS == 2 ? turn % 2 * BUFFER : 0);
            bf16* gradient = tile + Tile::SIZE;
            wait_groups<0>();
            Tile::activate(tile, norm, block / (OH / BH), block % (OH / BH) * BH * STRIDE + row0 - PAD, -PAD, first_in);
            __syncthreads();
            if (BUFFERS == 2) {
                if (block + 1 < end) load(block + 1, buffers + (turn + 1) % 2 * BUFFER);
                end_group();
            }
#pragma unroll 2
            for (int run = mine; run < BH * OW / 16; run += GROUPS) {
                u32 a[2][4];
#pragma unroll
                for (int half = 0; half < 2; half++)
                    load_transposed(a[half], gradient + (run * 16 + lane % 8 + lane / 16 * 8) * Gradient::PITCH
                                                 + co + half * 16 + lane / 8 % 2 * 8);
                const int pixel = run * 16 + lane % 16;
                const bf16* moved = tile + ((pixel / OW * STRIDE + row) * IC + pixel % OW * STRIDE) * Tile::PITCH
                                    + ci + lane / 16 * 8;
#pragma unroll
                for (int side = 0; side < SIDE; side++)
#pragma unroll
                    for (int n = 0; n < NI / 16; n++) {
                        u32 b[4];
                        load_transposed(b, moved + side * Tile::PITCH + n * 16);
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            multiply(total[side][half][2 * n], a[half], b[0], b[1]);
                            multiply(total[side][half][2 * n + 1], a[half], b[2], b[3]);
                        }
                    }
            }
            if (BUFFERS == 1) {
                __syncthreads();  // what is there has been read
                if (block + 1 < end) load(block + 1, buffers);
                end_group();
            }
        }

        float* room = (float*)shared + unit * PLACE + lane;  // the groups add up, one after the other
        for (int group = 1; group < GROUPS; group++) {
            __syncthreads();
            int at = 0;
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int n = 0; n < NI / 8; n++)
#pragma unroll
                        for (int k = 0; k < 4; k++, at += 32)
                            if (mine == group) room[at] = total[i][j][n][k];
            __syncthreads();
            at = 0;
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int n = 0; n < NI / 8; n++)
#pragma unroll
                        for (int k = 0; k < 4; k++, at += 32)
                            if (mine == 0) total[i][j][n][k] += room[at];
        }
        if (mine != 0) return;
        float* out = part + (long long)blockIdx.x * CO * TAPS * CI;
#pragma unroll
        for (int side = 0; side < SIDE; side++)
#pragma unroll
            for (int half = 0; half < 4; half++)
#pragma unroll
                for (int n = 0; n < NI / 8; n++) {
                    const int output = first_out + co + half * 8 + lane / 4;
                    const int input = first_in + ci + n * 8 + lane % 4 * 2;
                    const int tap = (row0 + row) * SIDE + side;
                    float2 pair = make_float2(total[side][half / 2][n][half % 2 * 2],
                                              total[side][half / 2][n][half % 2 * 2 + 1]);
                    *(float2*)(out + ((long long)output * TAPS + tap) * CI + input) = pair;
                }
    }
};

#ifndef NO_COMMON
// The sum over parts of weight gradients; 256 threads for 128 numbers.
extern "C" __global__ void sum_parts(const float* part, float* out, int numbers, int parts) {
    __shared__ __align__(16) float room[8][128];
    const int mine = threadIdx.x % 32 * 4, at = blockIdx.x * 128 + mine, share = threadIdx.x / 32;
    float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
    for (int each = share; each < parts; each += 8) {
        const float4 v = *(const float4*)(part + (long long)each * numbers + at);
        total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    *(float4*)(&room[share][mine]) = total;
    __syncthreads();
    if (threadIdx.x >= 128) return;
    float all = 0.f;
    for (int each = 0; each < 8; each++) all += room[each][threadIdx.x];
    out[blockIdx.x * 128 + threadIdx.x] = all;
}

// 8 channels of the sums of all blocks, in the first 8 threads; 256 threads.
__device__ inline void sum_blocks(const float* sums, int blocks, int channels, double& first, double& second) {
    __shared__ double room[2][256];
    const int channel = blockIdx.x * 8 + threadIdx.x % 8;
    double a = 0, b = 0;
#pragma unroll 4
    for (int each = threadIdx.x / 8; each < blocks; each += 32) {
        a += sums[(long long)each * 2 * channels + channel];
        b += sums[((long long)each * 2 + 1) * channels + channel];
    }
    room[0][threadIdx.x] = a, room[1][threadIdx.x] = b;
    __syncthreads();
    first = second = 0;
    if (threadIdx.x < 8)
        for (int each = 0; each < 32; each++)
            first += room[0][each * 8 + threadIdx.x], second += room[1][each * 8 + threadIdx.x];
}

// Mean and deviation from sums, as `norm` has them, and the running statistics.
extern "C" __global__ void normalise(const float* sums, const float* gamma, const float* beta, float* mean,
                                     float* variance, float* norm, int blocks, int channels, int count,
                                     float momentum, float eps) {
    double sum, squares;
    sum_blocks(sums, blocks, channels, sum, squares);
    if (threadIdx.x >= 8) return;
    const int c = blockIdx.x * 8 + threadIdx.x;
    const double m = sum / count, spread = squares / count - m * m, v = spread < 0 ? 0 : spread;
    const float inverse = (float)(1. / sqrt(v + eps)), scale = gamma[c] * inverse;
    norm[c] = (float)m, norm[channels + c] = inverse;
    norm[2 * channels + c] = scale, norm[3 * channels + c] = beta[c] - (float)m * scale;
    mean[c] += momentum * ((float)m - mean[c]);
    variance[c] += momentum * ((float)(v * count / (count - 1)) - variance[c]);
}

// The gradients of batch norm: of its weight and bias, and in `factors` what makes one in the input of g and x.
extern "C" __global__ void normalise_backward(const float* sums, const float* gamma, const float* norm,
                                              float* dgamma, float* dbeta, float* factors, int blocks,
                                              int channels, int count) {
    double sum, product;
    sum_blocks(sums, blocks, channels, sum, product);
    if (threadIdx.x >= 8) return;
    const int c = blockIdx.x * 8 + threadIdx.x;
    const double mean = norm[c], inverse = norm[channels + c];
    const double a = gamma[c] * inverse, b = -a * inverse * product / count;
    dbeta[c] = (float)sum, dgamma[c] = (float)product;
    factors[c] = (float)a, factors[channels + c] = (float)b;
    factors[2 * channels + c] = (float)(-a * sum / count - b * mean);
}

// factors[0] g + factors[1] x + factors[2], plus `add` where there is one; threads are a multiple of C / 8.
extern "C" __global__ void combine(const bf16* g, const bf16* x, const bf16* add, const float* factors,
                                   bf16* out, int channels, int pixels) {
    const int chunks = channels / 8, stride = gridDim.x * blockDim.x / chunks;
    const int start = blockIdx.x * blockDim.x + threadIdx.x;
    const int channel = start % chunks * 8;
    float a[8], b[8], d[8];
    read8(a, factors + channel), read8(b, factors + channels + channel);
    read8(d, factors + 2 * channels + channel);
#pragma unroll 2
    for (int pixel = start / chunks; pixel < pixels; pixel += stride) {
        const long long at = (long long)pixel * channels + channel;
        float u[8], v[8], w[8] = {};
        unpack(u, read16(g + at)), unpack(v, read16(x + at));
        if (add) unpack(w, read16(add + at));
        for (int i = 0; i < 8; i++) u[i] = fmaf(a[i], u[i], fmaf(b[i], v[i], d[i])) + w[i];
        write16(out + at, packed(u));
    }
}

// Sums of x and of its squares, `sums` as convolutions write them; 256 threads, C = 16.
extern "C" __global__ void measure16(const bf16* x, float* sums, int pixels) {
    __shared__ float room[8][32];
    const int place = threadIdx.x % 2 * 8;
    float sum[16] = {}, v[8];
#pragma unroll 4
    for (int pixel = (blockIdx.x * 256 + threadIdx.x) / 2; pixel < pixels; pixel += gridDim.x * 128) {
        unpack(v, read16(x + (long long)pixel * 16 + place));
        for (int i = 0; i < 8; i++) sum[i] += v[i], sum[8 + i] += v[i] * v[i];
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int step = 2; step < 32; step *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
    if (threadIdx.x % 32 < 2)
        for (int i = 0; i < 16; i++) room[threadIdx.x / 32][i / 8 * 16 + place + i % 8] = sum[i];
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float all = 0.f;
    for (int each = 0; each < 8; each++) all += room[each][threadIdx.x];
    sums[blockIdx.x * 32 + threadIdx.x] = all;
}
#endif
