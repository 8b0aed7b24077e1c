// Activations of the feed-forward layers, in f32.
#pragma once

#include "common.cuh"

namespace candlepower {

// The values are those of Activation in Rust.
enum class Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2, kSwigluOai = 3, kRelu = 4, kReluSquared = 5 };

// Constants of kSwigluOai: the limit of both halves, and the factor in its sigmoid.
constexpr float kSwigluLimit = 7.0f;
constexpr float kSwigluAlpha = 1.702f;

template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == Activation::kSilu) return x / (1.0f + expf(-x));
  if constexpr (kActivation == Activation::kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  if constexpr (kActivation == Activation::kSwigluOai) {
    const float bounded = fminf(x, kSwigluLimit);
    return bounded / (1.0f + expf(-kSwigluAlpha * bounded));
  }
  if constexpr (kActivation == Activation::kRelu) return fmaxf(x, 0.0f);
  if constexpr (kActivation == Activation::kReluSquared) {
    const float positive = fmaxf(x, 0.0f);
    return positive * positive;
  }
  // sqrt(2 / pi) (x + 0.044715 x^3)
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

// The factor that a gate's activation is multiplied by.
template <Activation kActivation>
__device__ __forceinline__ float gated_value(float up) {
  if constexpr (kActivation != Activation::kSwigluOai) return up;
  return fmaxf(fminf(up, kSwigluLimit), -kSwigluLimit) + 1.0f;
}

// `act(gate) * up`, rounded to the element type.
template <typename T, Activation kActivation>
__device__ __forceinline__ T gated_element(T gate, T up) {
  const float activated = activate<kActivation>(static_cast<float>(gate));
  return T(activated * gated_value<kActivation>(static_cast<float>(up)));
}

// The same for an activation that is known when the kernel runs. Products do this once for each output, so the branch
// costs nothing, and their kernels are compiled once instead of six times.
template <typename T>
__device__ __forceinline__ T gated_element(int32_t activation, T gate, T up) {
  switch (static_cast<Activation>(activation)) {
    case Activation::kSilu: return gated_element<T, Activation::kSilu>(gate, up);
    case Activation::kGelu: return gated_element<T, Activation::kGelu>(gate, up);
    case Activation::kGeluTanh: return gated_element<T, Activation::kGeluTanh>(gate, up);
    case Activation::kSwigluOai: return gated_element<T, Activation::kSwigluOai>(gate, up);
    case Activation::kRelu: return gated_element<T, Activation::kRelu>(gate, up);
    case Activation::kReluSquared: break;
  }
  return gated_element<T, Activation::kReluSquared>(gate, up);
}

// Whether the number is that of an activation.
inline bool is_activation(int32_t activation) {
  return activation >= 0 && activation <= static_cast<int32_t>(Activation::kReluSquared);
}

}  // namespace candlepower
