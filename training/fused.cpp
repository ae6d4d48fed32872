// The codec's residual unit, y = x + point(snake(wide(snake(x)))), forward and backward on a CPU.
//
// Tensors are float32 [batch, time, channels]; kernels are [taps, inputs, outputs]. With few channels
// and tens of thousands of steps the library's convolution moves more memory than it computes. Here
// a tile of output steps stays in vector registers while the kernel streams past it, and the backward
// pass recomputes the activations instead of keeping them.

#include <torch/extension.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

using torch::Tensor;

#ifdef __AVX512F__
constexpr int kLanes = 16, kRegisters = 32;
#else
constexpr int kLanes = 8, kRegisters = 16;
#endif
constexpr int kTaps = 7;
constexpr int kGroup = 2;  // vectors of outputs that a tile makes at a time
typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4)));

inline Vector spread(float value) { return value - (Vector){}; }
inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

// Output steps of one tile: as many as keep their sums in registers, next to a row of the kernel and
// one input.
constexpr int kSteps = (kRegisters - kGroup - 2) / kGroup;

// A tile of outputs from the inputs that each tap of each step reads.
template <int C>
void tile(const float* const* inputs, const float* kernel, const float* bias, float* out, int taps) {
  static_assert(C % kLanes == 0);
  constexpr int kVectors = C % (kGroup * kLanes) ? 1 : kGroup;  // 48 channels are three wide vectors
  for (int first = 0; first < C; first += kVectors * kLanes) {
    Vector sums[kSteps][kVectors];
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; step++)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++)
        sums[step][v] = bias ? load(bias + first + kLanes * v) : (Vector){};
    for (int tap = 0; tap < taps; tap++) {
      const float* rows = kernel + static_cast<size_t>(tap) * C * C + first;
      const float* const* from = inputs + tap * kSteps;
      for (int i = 0; i < C; i++) {
        Vector row[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; v++) row[v] = load(rows + i * C + kLanes * v);
#pragma GCC unroll 16
        for (int step = 0; step < kSteps; step++) {
          const Vector x = spread(from[step][i]);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; v++) sums[step][v] += x * row[v];
        }
      }
    }
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; step++)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) store(out + step * C + first + kLanes * v, sums[step][v]);
  }
}

// out[t] = bias + sum over taps of kernel[tap] applied to x[t - direction * (taps - 1 - tap) * step]:
// direction 1 looks back (the convolution), -1 ahead (its gradient with a transposed kernel).
template <int C>
void convolve(const float* x, const float* kernel, const float* bias, float* out, int time, int taps,
              int step, int direction) {
  static const float nothing[64] = {0};
  const float* inputs[kTaps * kSteps];
  float last[kSteps * C];
  for (int t = 0; t < time; t += kSteps) {
    for (int tap = 0; tap < taps; tap++)
      for (int j = 0; j < kSteps; j++) {
        const int source = t + j - direction * (taps - 1 - tap) * step;
        const bool inside = source >= 0 && source < time;
        inputs[tap * kSteps + j] = inside ? x + static_cast<size_t>(source) * C : nothing;
      }
    float* to = out + static_cast<size_t>(t) * C;
    if (t + kSteps <= time) {
      tile<C>(inputs, kernel, bias, to, taps);
    } else {
      tile<C>(inputs, kernel, bias, last, taps);
      std::memcpy(to, last, sizeof(float) * (time - t) * C);
    }
  }
}

// Adds the gradients of kernel and bias, a stretch of time after the other so that it stays in cache.
template <int C>
void kernel_gradient(const float* x, const float* grad, float* kernel, float* bias, int time, int taps,
                     int step) {
  constexpr int kStretch = 512;
  for (int begin = 0; begin < time; begin += kStretch) {
    const int end = std::min(begin + kStretch, time);
    for (int tap = 0; tap < taps; tap++) {
      const int back = (taps - 1 - tap) * step, first = std::max(begin, back);
      if (first >= end) continue;
      float* rows = kernel + static_cast<size_t>(tap) * C * C;
      for (int in = 0; in < C; in += kLanes)
        for (int out = 0; out < C; out += kLanes) {
          Vector sums[kLanes];
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; i++) sums[i] = (Vector){};
          const float* from = x + static_cast<size_t>(first - back) * C + in;
          const float* by = grad + static_cast<size_t>(first) * C + out;
          for (int t = first; t < end; t++, from += C, by += C) {
            const Vector g = load(by);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; i++) sums[i] += spread(from[i]) * g;
          }
          for (int i = 0; i < kLanes; i++) {
            float* to = rows + (in + i) * C + out;
            store(to, load(to) + sums[i]);
          }
        }
    }
  }
  for (int t = 0; t < time; t++)
    for (int c = 0; c < C; c++) bias[c] += grad[static_cast<size_t>(t) * C + c];
}

// out = x + sin(a x)^2 / a, as x + (1 - cos(2 a x)) / (2 a).
template <int C>
void snake(const float* x, const float* alpha, float* out, int time) {
  float twice[C], half[C];
  for (int c = 0; c < C; c++) {
    twice[c] = 2 * alpha[c];
    half[c] = 0.5f / (alpha[c] + 1e-9f);
  }
  for (int t = 0; t < time; t++) {
    const float* from = x + static_cast<size_t>(t) * C;
    float* to = out + static_cast<size_t>(t) * C;
#pragma omp simd
    for (int c = 0; c < C; c++) to[c] = from[c] + (1.f - cosf(twice[c] * from[c])) * half[c];
  }
}

// Gradient to x; adds that of alpha.
template <int C>
void snake_gradient(const float* x, const float* alpha, const float* grad, float* to_x, float* to_alpha,
                    int time) {
  float twice[C], inverse[C], sums[C] = {0};
  for (int c = 0; c < C; c++) {
    twice[c] = 2 * alpha[c];
    inverse[c] = 1.f / (alpha[c] + 1e-9f);
  }
  for (int t = 0; t < time; t++) {
    const float* from = x + static_cast<size_t>(t) * C;
    const float* by = grad + static_cast<size_t>(t) * C;
    float* to = to_x + static_cast<size_t>(t) * C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
      const float slope = sinf(twice[c] * from[c]), sine = sinf(0.5f * twice[c] * from[c]);
      const float change = from[c] * slope * inverse[c] - sine * sine * inverse[c] * inverse[c];
      sums[c] += by[c] * change;
      to[c] = by[c] * (1.f + slope);
    }
  }
  for (int c = 0; c < C; c++) to_alpha[c] += sums[c];
}

struct Weights {
  const float *alpha_in, *wide, *wide_bias, *alpha_out, *point, *point_bias;
};

struct Gradients {
  float *x, *alpha_in, *wide, *wide_bias, *alpha_out, *point, *point_bias;
};

template <int C>
void forward(const float* x, const Weights& w, float* y, int batch, int time, int step) {
  const size_t size = static_cast<size_t>(time) * C;
  std::vector<float> active(size), hidden(size);
  for (int b = 0; b < batch; b++, x += size, y += size) {
    snake<C>(x, w.alpha_in, active.data(), time);
    convolve<C>(active.data(), w.wide, w.wide_bias, hidden.data(), time, kTaps, step, 1);
    snake<C>(hidden.data(), w.alpha_out, active.data(), time);
    convolve<C>(active.data(), w.point, w.point_bias, y, time, 1, 1, 1);
    for (size_t i = 0; i < size; i++) y[i] += x[i];
  }
}

// `w` holds the kernels as they are, `turned` with inputs and outputs exchanged.
template <int C>
void backward(const float* x, const float* grad, const Weights& w, const Weights& turned, Gradients to,
              int batch, int time, int step) {
  const size_t size = static_cast<size_t>(time) * C;
  std::vector<float> first(size), hidden(size), second(size), by_active(size), by_hidden(size);
  for (int b = 0; b < batch; b++, x += size, grad += size, to.x += size) {
    snake<C>(x, w.alpha_in, first.data(), time);
    convolve<C>(first.data(), w.wide, w.wide_bias, hidden.data(), time, kTaps, step, 1);
    snake<C>(hidden.data(), w.alpha_out, second.data(), time);
    kernel_gradient<C>(second.data(), grad, to.point, to.point_bias, time, 1, 1);
    convolve<C>(grad, turned.point, nullptr, by_active.data(), time, 1, 1, -1);
    snake_gradient<C>(hidden.data(), w.alpha_out, by_active.data(), by_hidden.data(), to.alpha_out, time);
    kernel_gradient<C>(first.data(), by_hidden.data(), to.wide, to.wide_bias, time, kTaps, step);
    convolve<C>(by_hidden.data(), turned.wide, nullptr, by_active.data(), time, kTaps, step, -1);
    snake_gradient<C>(x, w.alpha_in, by_active.data(), to.x, to.alpha_in, time);
    for (size_t i = 0; i < size; i++) to.x[i] += grad[i];
  }
}

const float* data(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.scalar_type() == torch::kFloat32, "float32 is needed");
  return tensor.data_ptr<float>();
}

template <typename Call>
void for_channels(int64_t channels, Call call) {
  switch (channels) {
    case 16: return call(std::integral_constant<int, 16>());
    case 32: return call(std::integral_constant<int, 32>());
    case 48: return call(std::integral_constant<int, 48>());
    case 64: return call(std::integral_constant<int, 64>());
    default: TORCH_CHECK(false, "a unit of ", channels, " channels is not built");
  }
}

Tensor unit_forward(Tensor x, Tensor alpha_in, Tensor wide, Tensor wide_bias, Tensor alpha_out,
                    Tensor point, Tensor point_bias, int64_t step) {
  Tensor y = torch::empty_like(x);
  const Weights w{data(alpha_in), data(wide), data(wide_bias), data(alpha_out), data(point), data(point_bias)};
  for_channels(x.size(2), [&](auto channels) {
    forward<channels>(data(x), w, y.data_ptr<float>(), x.size(0), x.size(1), step);
  });
  return y;
}

std::vector<Tensor> unit_backward(Tensor x, Tensor grad, Tensor alpha_in, Tensor wide, Tensor wide_bias,
                                  Tensor alpha_out, Tensor point, int64_t step) {
  std::vector<Tensor> made{torch::empty_like(x)};
  for (const Tensor& weight : {alpha_in, wide, wide_bias, alpha_out, point}) made.push_back(torch::zeros_like(weight));
  made.push_back(torch::zeros_like(wide_bias));
  const Tensor wide_turned = wide.transpose(1, 2).contiguous(), point_turned = point.transpose(1, 2).contiguous();
  const Weights w{data(alpha_in), data(wide), data(wide_bias), data(alpha_out), data(point), nullptr};
  const Weights turned{nullptr, data(wide_turned), nullptr, nullptr, data(point_turned), nullptr};
  std::vector<float*> to;
  for (Tensor& tensor : made) to.push_back(tensor.data_ptr<float>());
  const Gradients gradients{to[0], to[1], to[2], to[3], to[4], to[5], to[6]};
  for_channels(x.size(2), [&](auto channels) {
    backward<channels>(data(x), data(grad), w, turned, gradients, x.size(0), x.size(1), step);
  });
  return made;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("forward", &unit_forward);
  module.def("backward", &unit_backward);
}
