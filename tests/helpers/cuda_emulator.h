// Runs a CUDA kernel on a CPU, thread by thread: every thread of a block is a fiber, which waits at barriers
// and at the collective instructions of its warp. Slow, exact, and for small tests.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <ucontext.h>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
using std::min;

struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct dim { int x = 0, y = 0, z = 0; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static dim threadIdx, blockIdx, blockDim, gridDim;
__align__(16) unsigned char shared[232448];

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
struct Barrier { int arrived = 0, generation = 0; };
static Barrier block_barrier, warp_barriers[32];
static uint32_t slots[1024][8];

static void yield() {
    const int me = threadIdx.x;
    swapcontext(&fibers[me].context, &scheduler);
}
static void wait_at(Barrier& barrier, int count) {
    const int generation = barrier.generation;
    if (++barrier.arrived == count) {
        barrier.arrived = 0, barrier.generation++;
        return;
    }
    while (barrier.generation == generation) yield();
}
static void __syncthreads() { wait_at(block_barrier, blockDim.x); }
static void sync_warp() { wait_at(warp_barriers[threadIdx.x / 32], 32); }
static void __syncwarp() { sync_warp(); }

static uint32_t bits(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }
static float number(uint32_t u) { float v; memcpy(&v, &u, 4); return v; }
static float low(uint32_t v) { return number(v << 16); }
static float high(uint32_t v) { return number(v & 0xffff0000u); }
static uint32_t rounded(float v) {
    const uint32_t u = bits(v);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static uint32_t pack(float first, float second) { return rounded(first) | rounded(second) << 16; }
static float __shfl_xor_sync(unsigned, float v, int mask) {
    const int me = threadIdx.x;
    slots[me][0] = bits(v);
    sync_warp();
    const float out = number(slots[me ^ mask][0]);
    sync_warp();
    return out;
}
// lane i gives row i % 8 of matrix i / 8; it gets two neighbours of row i / 4, or of a column
static void matrices(uint32_t (&r)[4], const unsigned short* p, bool transposed) {
    const int me = threadIdx.x, warp = me / 32 * 32, lane = me % 32;
    if ((uintptr_t)p % 16 || (const unsigned char*)p < shared || (const unsigned char*)(p + 8) > shared + sizeof shared)
        abort();
    memcpy(slots[me], p, 16);
    sync_warp();
    for (int matrix = 0; matrix < 4; matrix++) {
        unsigned short pair[2];
        for (int i = 0; i < 2; i++) {
            const int row = transposed ? lane % 4 * 2 + i : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + i;
            pair[i] = ((unsigned short*)slots[warp + matrix * 8 + row])[column];
        }
        r[matrix] = pair[0] | (uint32_t)pair[1] << 16;
    }
    sync_warp();
}
static void load_matrices(uint32_t (&r)[4], const unsigned short* p) { matrices(r, p, false); }
static void load_transposed(uint32_t (&r)[4], const unsigned short* p) { matrices(r, p, true); }
static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int me = threadIdx.x, warp = me / 32 * 32, lane = me % 32;
    memcpy(slots[me], a, 16);
    slots[me][4] = b0, slots[me][5] = b1;
    sync_warp();
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint32_t u = slots[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const uint32_t v = slots[warp + column * 4 + k % 8 / 2][4 + k / 8];
            d[i] += (k % 2 ? high(u) : low(u)) * (k % 2 ? high(v) : low(v));
        }
    }
    sync_warp();
}
// what is fetched arrives at the latest moment, when its group is waited for, or at once
struct Fetch { unsigned short *to; const unsigned short* from; bool inside; };
static std::vector<std::vector<std::vector<Fetch>>> groups;
static void fetch(unsigned short* to, const unsigned short* from, bool inside) {
#ifdef EARLY
    if (inside) memcpy(to, from, 16);
    else memset(to, 0, 16);
#else
    groups[threadIdx.x].back().push_back({to, from, inside});
#endif
}
static void end_group() { groups[threadIdx.x].emplace_back(); }
template <int LEFT> static void wait_groups() {
    auto& mine = groups[threadIdx.x];  // the last is open
    const int ready = (int)mine.size() - 1 - LEFT;
    for (int i = 0; i < ready; i++) {
        for (const Fetch& each : mine[i]) {
            if (each.inside) memcpy(each.to, each.from, 16);
            else memset(each.to, 0, 16);
        }
    }
    if (ready > 0) mine.erase(mine.begin(), mine.begin() + ready);
}

static void (*running)(void**);
static void** arguments;
static void begin() {
    running(arguments);
    fibers[threadIdx.x].done = true;
    yield();
}
static void launch(void (*kernel)(void**), int gx, int gy, int threads, void** given) {
    running = kernel, arguments = given;
    gridDim.x = gx, gridDim.y = gy, blockDim.x = threads;
    fibers.resize(threads);
    for (int block = 0; block < gx * gy; block++) {
        blockIdx.x = block % gx, blockIdx.y = block / gx;
        memset(shared, 0xff, sizeof shared);  // what nobody wrote is not a number
        block_barrier = Barrier();
        for (auto& each : warp_barriers) each = Barrier();
        groups.assign(threads, std::vector<std::vector<Fetch>>(1));
        for (auto& each : fibers) {
            each.stack.resize(1 << 17), each.done = false;
            getcontext(&each.context);
            each.context.uc_stack.ss_sp = each.stack.data(), each.context.uc_stack.ss_size = each.stack.size();
            each.context.uc_link = &scheduler;
            makecontext(&each.context, begin, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (int i = 0; i < threads; i++)
                if (!fibers[i].done) {
                    left = true, threadIdx.x = i;
                    swapcontext(&scheduler, &fibers[i].context);
                }
        }
    }
}
