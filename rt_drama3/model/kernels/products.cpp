// Products of a few rows with weights as a checkpoint stores them (docs/model.md, 11).
//
// A row of weights is read from its first block to its last, in groups of 32. Rows of x become int8,
// with one scale for each group; where a format's parts are shorter than a group, each half has its
// own scale. The order of a row's sum depends on nothing but its length. Vectors are GCC's, so that
// the same source serves every processor; only the integer product of two vectors has forms of its
// own.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace {

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint8_t u8x32 __attribute__((vector_size(32)));
typedef int8_t i8x32 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));

constexpr int GROUP = 32;

template <class T> T load(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

float half(const uint8_t* from) {
#if defined(__F16C__)
    return _cvtsh_ss(load<uint16_t>(from));
#else
    return static_cast<float>(load<_Float16>(from));
#endif
}

// Lane i is the sum of the products of bytes 4i to 4i + 3.
inline i32x8 dot(i8x32 a, i8x32 b) {
#if defined(__AVXVNNIINT8__)
    return (i32x8)_mm256_dpbssd_epi32(_mm256_setzero_si256(), (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
    __m256i magnitude = _mm256_abs_epi8((__m256i)a), sign = _mm256_sign_epi8((__m256i)b, (__m256i)a);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (i32x8)_mm256_dpbusd_epi32(_mm256_setzero_si256(), magnitude, sign);
#else
    __m256i pairs = _mm256_maddubs_epi16(magnitude, sign);
    return (i32x8)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
    int8x16_t a0 = load<int8x16_t>(&a), a1 = load<int8x16_t>((char*)&a + 16);
    int8x16_t b0 = load<int8x16_t>(&b), b1 = load<int8x16_t>((char*)&b + 16);
    int32x4_t parts[2] = {vdotq_s32(vdupq_n_s32(0), a0, b0), vdotq_s32(vdupq_n_s32(0), a1, b1)};
    return load<i32x8>(parts);
#else
    i32x8 sums = {};
    for (int i = 0; i < GROUP; i++) sums[i / 4] += int(a[i]) * int(b[i]);
    return sums;
#endif
}

inline f32x8 both(float first, float second) {
    return f32x8{first, first, first, first, second, second, second, second};
}
inline f32x8 all(float value) { return both(value, value); }

// 32 bytes that hold two halves of 16 nibbles, the low ones first.
inline u8x32 nibbles(const uint8_t* from) {
    u8x16 half = load<u8x16>(from);
    u8x32 q = __builtin_shufflevector(half, half, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    constexpr u8x32 first = {15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15};
    return (q & first) | (q >> 4 & ~first & 15);
}

// A group of weights: integers, their scale (of each half), and what is subtracted for each half.
struct Group {
    i8x32 q;
    f32x8 scale;
    float low = 0, high = 0;
};

struct Q8_0 {
    static constexpr int COUNT = 32, BYTES = 34;
    static constexpr bool MINIMUM = false;
    static Group group(const uint8_t* block, int) {
        return {load<i8x32>(block + 2), all(half(block))};
    }
};

struct Q4_0 {
    static constexpr int COUNT = 32, BYTES = 18;
    static constexpr bool MINIMUM = false;
    static Group group(const uint8_t* block, int) {
        return {(i8x32)(nibbles(block + 2)) - 8, all(half(block))};
    }
};

// Part g of q4_k and q5_k, whose integers are there: scale and minimum have six bits each.
inline Group with_minimum(const uint8_t* block, int g, u8x32 q) {
    const uint8_t* s = block + 4;
    int scale, minimum;
    if (g < 4) {
        scale = s[g] & 63, minimum = s[g + 4] & 63;
    } else {
        scale = (s[g + 4] & 15) | (s[g - 4] >> 6 << 4);
        minimum = (s[g + 4] >> 4) | (s[g] >> 6 << 4);
    }
    float low = half(block + 2) * minimum;
    return {(i8x32)q, all(half(block) * scale), low, low};
}

struct Q4_K {
    static constexpr int COUNT = 256, BYTES = 144;
    static constexpr bool MINIMUM = true;
    static Group group(const uint8_t* block, int g) {
        u8x32 q = load<u8x32>(block + 16 + g / 2 * 32);
        return with_minimum(block, g, g % 2 ? q >> 4 : q & 15);
    }
};

struct Q5_K {
    static constexpr int COUNT = 256, BYTES = 176;
    static constexpr bool MINIMUM = true;
    static Group group(const uint8_t* block, int g) {
        u8x32 q = load<u8x32>(block + 48 + g / 2 * 32);
        q = (g % 2 ? q >> 4 : q & 15) | ((load<u8x32>(block + 16) >> g & 1) << 4);
        return with_minimum(block, g, q);
    }
};

struct Q6_K {
    static constexpr int COUNT = 256, BYTES = 210;
    static constexpr bool MINIMUM = false;
    static Group group(const uint8_t* block, int g) {
        int part = g / 4, place = g % 4;  // of 128 weights, and of its 32
        u8x32 low = load<u8x32>(block + part * 64 + place % 2 * 32);
        low = place < 2 ? low & 15 : low >> 4;
        u8x32 top = load<u8x32>(block + 128 + part * 32) >> (2 * place) & 3;
        const int8_t* scales = (const int8_t*)block + 192 + 2 * g;
        float d = half(block + 208);
        return {(i8x32)(low | top << 4) - 32, both(d * scales[0], d * scales[1])};
    }
};

struct Q3_K {
    static constexpr int COUNT = 256, BYTES = 110;
    static constexpr bool MINIMUM = false;
    static int scale(const uint8_t* s, int n) {  // of part n of 16
        int low = n < 8 ? s[n] & 15 : s[n - 8] >> 4;
        return (low | (s[8 + n % 4] >> n / 4 * 2 & 3) << 4) - 32;
    }
    static Group group(const uint8_t* block, int g) {
        u8x32 q = load<u8x32>(block + 32 + g / 4 * 32) >> (2 * (g % 4)) & 3;
        q |= (load<u8x32>(block) >> g & 1) << 2;
        float d = half(block + 108);
        return {(i8x32)q - 4, both(d * scale(block + 96, 2 * g), d * scale(block + 96, 2 * g + 1))};
    }
};

struct Q2_K {
    static constexpr int COUNT = 256, BYTES = 84;
    static constexpr bool MINIMUM = true;
    static Group group(const uint8_t* block, int g) {
        u8x32 q = load<u8x32>(block + 16 + g / 4 * 32) >> (2 * (g % 4)) & 3;
        uint8_t first = block[2 * g], second = block[2 * g + 1];
        float d = half(block + 80), minimum = half(block + 82);
        return {(i8x32)q, both(d * (first & 15), d * (second & 15)), minimum * (first >> 4),
                minimum * (second >> 4)};
    }
};

struct IQ4_XS {
    static constexpr int COUNT = 256, BYTES = 136;
    static constexpr bool MINIMUM = false;
    static Group group(const uint8_t* block, int g) {
        constexpr u8x32 values = {
            129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113,
            129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113};
        u8x32 q = nibbles(block + 8 + 16 * g);
#if defined(__AVX2__)
        q = (u8x32)_mm256_shuffle_epi8((__m256i)values, (__m256i)q);
#else
        for (int i = 0; i < GROUP; i++) q[i] = values[q[i]];
#endif
        int high = load<uint16_t>(block + 2) >> 2 * g & 3;
        int scale = (block[4 + g / 2] >> 4 * (g % 2) & 15) | high << 4;
        return {(i8x32)q, all(half(block) * (scale - 32))};
    }
};

// x as int8: values, and for each group its scale and the sums of both halves, times the scale.
struct Rows {
    std::vector<int8_t> q;
    std::vector<float> scale, low, high;
    void set(const float* x, int rows, int columns) {
        size_t groups = size_t(rows) * columns / GROUP;
        q.resize(groups * GROUP), scale.resize(groups), low.resize(groups), high.resize(groups);
        for (size_t g = 0; g < groups; g++) {
            const float* from = x + g * GROUP;
            float most = 0, finite = 0;
            for (int i = 0; i < GROUP; i++) {
                most = std::max(most, std::fabs(from[i]));
                finite += from[i] * 0;  // NaN where a value is not
            }
            const bool usable = finite == 0 && most > 0;
            float one = most / 127 + finite, inverse = 127 / most;
            int sums[2] = {0, 0};
            for (int i = 0; i < GROUP; i++) {
                int value = usable ? int(std::nearbyintf(from[i] * inverse)) : 0;
                q[g * GROUP + i] = int8_t(value);
                sums[i / 16] += value;
            }
            scale[g] = one, low[g] = one * sums[0], high[g] = one * sums[1];
        }
    }
};

inline float total(f32x8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// Rows first to last of the weights times `count` rows of x; N of them per pass over a row.
template <class F, int N>
void multiply(const uint8_t* row, const Rows& x, int columns, int at, float* out, size_t stride) {
    const int groups = columns / GROUP, each = F::COUNT / GROUP;
    f32x8 sums[N] = {};
    float below[N] = {};
    for (int block = 0; block < groups / each; block++, row += F::BYTES) {
        __builtin_prefetch(row + 2048);
#pragma GCC unroll 8
        for (int g = 0; g < each; g++) {  // unrolled: shifts by constants are one instruction
            Group w = F::group(row, g);
            for (int n = 0; n < N; n++) {
                size_t place = size_t(at + n) * groups + block * each + g;
                i8x32 q = load<i8x32>(x.q.data() + place * GROUP);
                f32x8 product = __builtin_convertvector(dot(w.q, q), f32x8);
                sums[n] += product * (w.scale * x.scale[place]);
                if (F::MINIMUM) below[n] += w.low * x.low[place] + w.high * x.high[place];
            }
        }
    }
    for (int n = 0; n < N; n++) out[n * stride] = total(sums[n]) - below[n];
}

// e4m3 has the bits of a half-precision number of a smaller exponent, subnormal numbers included.
inline f32x8 e4m3(const uint8_t* from) {
    typedef uint8_t u8x8 __attribute__((vector_size(8)));
    u16x8 code = __builtin_convertvector(load<u8x8>(from), u16x8);
    u16x8 bits = (code & 127) << 7 | (code & 128) << 8;
#if defined(__F16C__)
    f32x8 value = (f32x8)_mm256_cvtph_ps((__m128i)bits);
#else
    typedef _Float16 f16x8 __attribute__((vector_size(16)));
    f32x8 value = __builtin_convertvector((f16x8)bits, f32x8);
#endif
    return value * 256;
}

// One row of e4m3 codes times N rows of x; blocks of 128 columns have a scale.
template <int N>
void multiply_e4m3(const uint8_t* row, const float* scales, const float* x, int columns, float* out,
                   size_t stride) {
    constexpr int BLOCK = 128, LANES = 8;
    f32x8 sums[N] = {};
    for (int block = 0; block < columns / BLOCK; block++) {
        const int at = block * BLOCK;
        f32x8 parts[N][2] = {};
        __builtin_prefetch(row + at + 2048);
        __builtin_prefetch(row + at + 2112);
        for (int c = 0; c < BLOCK; c += 2 * LANES) {
            f32x8 first = e4m3(row + at + c), second = e4m3(row + at + c + LANES);
            for (int n = 0; n < N; n++) {
                const float* from = x + size_t(n) * columns + at + c;
                parts[n][0] += first * load<f32x8>(from);
                parts[n][1] += second * load<f32x8>(from + LANES);
            }
        }
        for (int n = 0; n < N; n++) sums[n] += (parts[n][0] + parts[n][1]) * scales[block];
    }
    for (int n = 0; n < N; n++) out[n * stride] = total(sums[n]);
}

using Multiply = void (*)(const uint8_t*, const Rows&, int, int, float*, size_t);

struct Form {
    int count, bytes;
    Multiply by[4];
};

template <class F> constexpr Form form() {
    return {F::COUNT, F::BYTES, {multiply<F, 1>, multiply<F, 2>, multiply<F, 3>, multiply<F, 4>}};
}

constexpr Form FORMS[] = {form<Q8_0>(), form<Q4_0>(), form<Q4_K>(), form<Q5_K>(),
                          form<Q6_K>(), form<Q3_K>(), form<Q2_K>(), form<IQ4_XS>()};

// Threads that wait for parts of a product: for a moment spinning, then asleep. Parts are small and
// are taken one by one, so that a core that is busy elsewhere delays the others for a moment alone.
class Pool {
  public:
    template <class Work> void run(int threads, int parts, const Work& work) {
        if (threads <= 1 || parts <= 1) {
            for (int part = 0; part < parts; part++) work(part);
            return;
        }
        std::lock_guard<std::mutex> one(users_);
        grow(threads - 1);
        {
            std::lock_guard<std::mutex> lock(changed_);
            call_ = [](const void* w, int part) { (*static_cast<const Work*>(w))(part); };
            work_ = &work, parts_ = parts;
            next_.store(0, std::memory_order_relaxed);
            active_.store(threads - 1, std::memory_order_relaxed);
            turn_.store(((turn_.load() >> BITS) + 1) << BITS | uint64_t(threads - 1));
        }
        wake_.notify_all();
        take();
        for (int spin = 0; active_.load(std::memory_order_acquire) > 0;) pause(spin);
    }

  private:
    std::mutex users_, changed_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
    static constexpr int BITS = 16;
    std::atomic<int> next_{0}, active_{0};
    std::atomic<uint64_t> turn_{0};  // a number, and below it how many threads take part
    int parts_ = 0;
    const void* work_ = nullptr;
    void (*call_)(const void*, int) = nullptr;

    static void pause(int& spin) {
        if (++spin < 2000) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else {
            spin = 0;
            std::this_thread::yield();
        }
    }
    void take() {
        for (int part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < parts_;)
            call_(work_, part);
    }
    void grow(int count) {
        while (int(threads_.size()) < count) {
            int number = int(threads_.size());
            uint64_t seen = turn_.load();
            threads_.emplace_back([this, number, seen] { serve(number, seen); });
            threads_.back().detach();
        }
    }
    void serve(uint64_t number, uint64_t seen) {
        for (;;) {
            for (int spin = 0, rounds = 0; turn_.load(std::memory_order_acquire) == seen;) {
                pause(spin);
                if (++rounds < 200000) continue;
                std::unique_lock<std::mutex> lock(changed_);
                wake_.wait(lock, [&] { return turn_.load() != seen; });
            }
            seen = turn_.load(std::memory_order_acquire);
            if (number >= seen % (uint64_t(1) << BITS)) continue;
            take();
            active_.fetch_sub(1, std::memory_order_release);
        }
    }
};

Pool& pool() {
    static Pool* one = new Pool;  // its threads outlive every static object
    return *one;
}

constexpr int PART = 16;  // rows of the weights that a thread takes at a time

// Calls multiply(row of the weights, first row of x, number of rows of x): up to four at a time.
template <class Multiplied> void each_row(int threads, int rows, int n, const Multiplied& multiply) {
    pool().run(threads, (rows + PART - 1) / PART, [&](int part) {
        for (int row = part * PART; row < rows && row < (part + 1) * PART; row++)
            for (int at = 0; at < n; at += 4) multiply(row, at, std::min(4, n - at));
    });
}

}  // namespace

extern "C" {

// x [n, columns] float32 times weights [rows, columns] transposed -> out [n, rows].
void rt_product(int format, const float* x, const uint8_t* weights, float* out, int n, int rows,
                int columns, int threads) {
    const Form& form = FORMS[format];
    static thread_local Rows quantised;
    quantised.set(x, n, columns);
    const Rows& input = quantised;
    const size_t bytes = size_t(columns) / form.count * form.bytes;
    each_row(threads, rows, n, [&](int row, int at, int some) {
        float* to = out + size_t(at) * rows + row;
        form.by[some - 1](weights + row * bytes, input, columns, at, to, rows);
    });
}

// The same with e4m3 codes [rows, columns] and float32 scales [rows / 128, columns / 128].
void rt_product_e4m3(const float* x, const uint8_t* weights, const float* scales, float* out, int n,
                     int rows, int columns, int threads) {
    constexpr decltype(&multiply_e4m3<1>) by[] = {multiply_e4m3<1>, multiply_e4m3<2>,
                                                  multiply_e4m3<3>, multiply_e4m3<4>};
    each_row(threads, rows, n, [&](int row, int at, int some) {
        const uint8_t* codes = weights + size_t(row) * columns;
        const float* factors = scales + size_t(row / 128) * (columns / 128);
        const float* from = x + size_t(at) * columns;
        by[some - 1](codes, factors, from, columns, out + size_t(at) * rows + row, rows);
    });
}
}
