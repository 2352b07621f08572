// CUDA C++ on the CPU: what the kernels of CubeCL use, for `nvrtc.c`.
//
// A block's threads are fibers that switch at barriers; blocks run one after the other. A matrix
// fragment belongs to the first lane of its warp, which computes the whole product.
// Number formats round as on a GPU: bf16 and f16 to nearest even, TF32 to nearest.
//
// Source: NVIDIA, CUDA C++ programming guide, "Warp matrix functions", "Synchronization functions".
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#define uint64_t cuda_uint64_t
#define int64_t cuda_int64_t
#define __global__
#define __device__
#define __host__
#define __shared__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define CUDART_INF_F INFINITY

struct uint3 { unsigned x, y, z; };

namespace emulated {
constexpr int WARP = 32, MOST_THREADS = 1024, STACK = 256 << 10;
enum Wait { RUNS, BLOCK, PLANE, DONE };
struct Fiber { ucontext_t context; Wait wait; uint3 place; };
static Fiber fibers[MOST_THREADS];
static ucontext_t scheduler;
static char *stacks;
static int current, num_threads;
static uint3 block_of_grid, block_size, grid_size;
static void (*body)(void *);
static void *arguments;
static double exchanged[MOST_THREADS];

static void wait(Wait wait) { fibers[current].wait = wait; swapcontext(&fibers[current].context, &scheduler); }
static void enter() { body(arguments); fibers[current].wait = DONE; }
static int lane() { return current % WARP; }

// Runs the fibers from `first` on until all wait or are done; lets them pass the barrier that all wait for.
static bool turn(int first, int end, Wait barrier) {
    bool all = true, any = false;
    for (int at = first; at < end; at++) {
        all &= fibers[at].wait == barrier || fibers[at].wait == DONE;
        any |= fibers[at].wait == barrier;
    }
    if (!all || !any) return false;
    for (int at = first; at < end; at++)
        if (fibers[at].wait == barrier) fibers[at].wait = RUNS;
    return true;
}
static void run_block() {
    for (int at = 0; at < num_threads; at++) {
        Fiber &fiber = fibers[at];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks + (size_t)at * STACK;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, enter, 0);
        fiber.wait = RUNS;
        fiber.place = {at % block_size.x, at / block_size.x % block_size.y, at / block_size.x / block_size.y};
    }
    for (;;) {
        bool any = false;
        for (int at = 0; at < num_threads; at++)
            if (fibers[at].wait == RUNS) { any = true; current = at; swapcontext(&scheduler, &fibers[at].context); }
        for (int first = 0; first < num_threads; first += WARP)
            any |= turn(first, first + WARP < num_threads ? first + WARP : num_threads, PLANE);
        if (!any && !turn(0, num_threads, BLOCK)) break;
    }
    for (int at = 0; at < num_threads; at++)
        if (fibers[at].wait != DONE) { fprintf(stderr, "emulated kernel: threads wait for different barriers\n"); abort(); }
}
static void run(void (*kernel)(void *), uint3 grid, uint3 block, void *of_launch) {
    if (!stacks) stacks = (char *)aligned_alloc(4096, (size_t)MOST_THREADS * STACK);
    body = kernel; block_size = block; grid_size = grid; arguments = of_launch;
    num_threads = block.x * block.y * block.z;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) { block_of_grid = {x, y, z}; run_block(); }
}
template <typename... A, size_t... I>
static void *copied(void (*)(A...), void **values, std::index_sequence<I...>) {
    return new std::tuple<A...>(*(A *)values[I]...);
}
template <typename... A> static void *copied(void (*kernel)(A...), void **values) {
    return copied(kernel, values, std::index_sequence_for<A...>());
}
template <typename... A> static void call(void (*kernel)(A...), void *values) { std::apply(kernel, *(std::tuple<A...> *)values); }
template <typename T> static T exchange(T value, int from) {
    static_assert(sizeof(T) <= sizeof(double), "a shuffled value has at most eight bytes");
    memcpy(&exchanged[current], &value, sizeof value);
    wait(PLANE);
    T other = value;
    if (from >= 0 && from < WARP) memcpy(&other, &exchanged[current - lane() + from], sizeof other);
    wait(PLANE);
    return other;
}
} // namespace emulated

#define threadIdx (emulated::fibers[emulated::current].place)
#define blockIdx emulated::block_of_grid
#define blockDim emulated::block_size
#define gridDim emulated::grid_size
static inline void __syncthreads() { emulated::wait(emulated::BLOCK); }
static inline void __syncwarp(unsigned = 0) { emulated::wait(emulated::PLANE); }
static inline void __threadfence() {}
static inline unsigned __activemask() { return ~0u; }
template <typename T> static T __shfl_sync(unsigned, T value, int lane) { return emulated::exchange(value, lane % 32); }
template <typename T> static T __shfl_xor_sync(unsigned, T value, int mask) { return emulated::exchange(value, emulated::lane() ^ mask); }
template <typename T> static T __shfl_up_sync(unsigned, T value, int delta) { return emulated::exchange(value, emulated::lane() - delta); }
template <typename T> static T __shfl_down_sync(unsigned, T value, int delta) { return emulated::exchange(value, emulated::lane() + delta); }

// Numbers of 16 bits: each operation in f32, rounded.
struct __half {
    uint16_t bits;
    __half() = default;
    template <typename T, typename = typename std::enable_if<std::is_arithmetic<T>::value>::type>
    __half(T value) : bits(_cvtss_sh((float)value, 0)) {}
    operator float() const { return _cvtsh_ss(bits); }
};
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    template <typename T, typename = typename std::enable_if<std::is_arithmetic<T>::value>::type>
    __nv_bfloat16(T number) {
        float value = (float)number;
        uint32_t word;
        memcpy(&word, &value, 4);
        bits = value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    __nv_bfloat16(__half value) : __nv_bfloat16((float)value) {}
    operator float() const { uint32_t word = (uint32_t)bits << 16; float value; memcpy(&value, &word, 4); return value; }
};
#define EMULATED_OPERATOR(T, op) \
    static inline T operator op(T a, T b) { return T((float)a op (float)b); } \
    static inline T &operator op##=(T &a, T b) { return a = a op b; }
#define EMULATED_PAIR(P, T) \
    struct P { T x, y; P() = default; P(T x, T y) : x(x), y(y) {} explicit P(float v) : x(v), y(v) {} };
#define EMULATED_OPERATORS(T, P) \
    EMULATED_OPERATOR(T, +) EMULATED_OPERATOR(T, -) EMULATED_OPERATOR(T, *) EMULATED_OPERATOR(T, /) \
    static inline T operator-(T a) { return T(-(float)a); } \
    EMULATED_PAIR(P, T) \
    static inline P operator+(P a, P b) { return P(a.x + b.x, a.y + b.y); } \
    static inline P operator-(P a, P b) { return P(a.x - b.x, a.y - b.y); } \
    static inline P operator*(P a, P b) { return P(a.x * b.x, a.y * b.y); } \
    static inline P operator/(P a, P b) { return P(a.x / b.x, a.y / b.y); } \
    static inline P operator-(P a) { return P(-a.x, -a.y); } \
    static inline T __hmax(T a, T b) { return (float)a > (float)b ? a : b; } \
    static inline T __hmin(T a, T b) { return (float)a < (float)b ? a : b; } \
    static inline T __habs(T a) { return T(fabsf((float)a)); } \
    static inline P __hmax2(P a, P b) { return P(__hmax(a.x, b.x), __hmax(a.y, b.y)); } \
    static inline P __hmin2(P a, P b) { return P(__hmin(a.x, b.x), __hmin(a.y, b.y)); } \
    static inline P __habs2(P a) { return P(__habs(a.x), __habs(a.y)); } \
    static inline T __hfma(T a, T b, T c) { return T(fmaf((float)a, (float)b, (float)c)); } \
    static inline P __hfma2(P a, P b, P c) { return P(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); } \
    static inline T hexp(T a) { return T(expf((float)a)); } \
    static inline T hlog(T a) { return T(logf((float)a)); } \
    static inline T hsqrt(T a) { return T(sqrtf((float)a)); } \
    static inline T hrsqrt(T a) { return T(1 / sqrtf((float)a)); } \
    static inline P h2exp(P a) { return P(hexp(a.x), hexp(a.y)); } \
    static inline P h2log(P a) { return P(hlog(a.x), hlog(a.y)); } \
    static inline P h2sqrt(P a) { return P(hsqrt(a.x), hsqrt(a.y)); } \
    static inline P h2rsqrt(P a) { return P(hrsqrt(a.x), hrsqrt(a.y)); }
EMULATED_OPERATORS(__half, __half2)
EMULATED_OPERATORS(__nv_bfloat16, __nv_bfloat162)

// Integers and functions of f32.
template <typename T> static T min(T a, T b) { return a < b ? a : b; }
template <typename T> static T max(T a, T b) { return a > b ? a : b; }
using std::isinf;
using std::isnan;
static inline float rsqrt(float a) { return 1 / sqrtf(a); }
static inline float rsqrtf(float a) { return 1 / sqrtf(a); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
static inline int __clz(unsigned a) { return a ? __builtin_clz(a) : 32; }
static inline int __popc(unsigned a) { return __builtin_popcount(a); }
static inline int __ffs(unsigned a) { return __builtin_ffs(a); }

namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator;
struct row_major; struct col_major;
namespace precision { struct tf32; }
enum layout_t { mem_row_major, mem_col_major };
template <typename T> struct Stored { typedef T type; };
template <> struct Stored<precision::tf32> { typedef float type; };
static inline float __float_to_tf32(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    word = (word + 0x1000) & 0xffffe000;
    memcpy(&value, &word, 4);
    return value;
}
template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    static constexpr int rows = std::is_same<Use, matrix_b>::value ? K : M, columns = std::is_same<Use, matrix_a>::value ? K : N;
    static constexpr int num_elements = rows * columns;
    typename Stored<T>::type x[num_elements]; // row after row
};
template <typename F, typename T> static void fill_fragment(F &matrix, T value) {
    for (int at = 0; at < F::num_elements; at++) matrix.x[at] = value;
}
template <typename F, typename P> static void load(F &matrix, const P *from, unsigned pitch, bool by_row) {
    if (emulated::lane()) return;
    for (int row = 0; row < F::rows; row++)
        for (int column = 0; column < F::columns; column++)
            matrix.x[row * F::columns + column] = from[by_row ? row * pitch + column : column * pitch + row];
}
template <typename Use, int M, int N, int K, typename T, typename Layout, typename P>
static void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &matrix, const P *from, unsigned pitch) {
    load(matrix, from, pitch, std::is_same<Layout, row_major>::value);
}
template <int M, int N, int K, typename T, typename P>
static void load_matrix_sync(fragment<accumulator, M, N, K, T, void> &matrix, const P *from, unsigned pitch, layout_t layout) {
    load(matrix, from, pitch, layout == mem_row_major);
}
template <typename F, typename P> static void store_matrix_sync(P *to, const F &matrix, unsigned pitch, layout_t layout) {
    if (emulated::lane()) return;
    for (int row = 0; row < F::rows; row++)
        for (int column = 0; column < F::columns; column++)
            to[layout == mem_row_major ? row * pitch + column : column * pitch + row] = matrix.x[row * F::columns + column];
}
template <typename D, typename C, int M, int N, int K, typename T, typename A, typename B>
static void mma_sync(D &sum, const fragment<matrix_a, M, N, K, T, A> &a, const fragment<matrix_b, M, N, K, T, B> &b, const C &start) {
    if (emulated::lane()) return;
    for (int row = 0; row < M; row++) {
        float line[N];
        for (int column = 0; column < N; column++) line[column] = start.x[row * N + column];
        for (int depth = 0; depth < K; depth++) {
            float left = a.x[row * K + depth];
            for (int column = 0; column < N; column++) line[column] += left * (float)b.x[depth * N + column];
        }
        for (int column = 0; column < N; column++) sum.x[row * N + column] = line[column];
    }
}
}} // namespace nvcuda::wmma
