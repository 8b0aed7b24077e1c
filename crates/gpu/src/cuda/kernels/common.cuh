// What all kernels share: element types, vector access, reductions over a block, the choice of a type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "index.cuh"

namespace candlepower {

// The element types; the values are those of `launch::dtype_code` in Rust.
enum class Dtype : int32_t { kBf16 = 0, kF16 = 1, kF32 = 2 };

constexpr int32_t kWarp = 32;

// Elements of one 16-byte access.
template <typename T>
constexpr int32_t kVectorWidth = 16 / static_cast<int32_t>(sizeof(T));

// N elements that are loaded and stored as one.
template <typename T, int32_t N>
struct alignas(N * sizeof(T)) Vector {
  T at[N];
};

// N elements as they lie in memory: what is loaded so is taken apart where it is used, not where it was asked for, which would wait for it.
template <typename T, int32_t N>
using Words = std::conditional_t<N * sizeof(T) == 16, uint4, Vector<T, N>>;

template <int32_t N, typename T>
__device__ __forceinline__ Words<T, N> load_words(const T* from) {
  return *reinterpret_cast<const Words<T, N>*>(from);
}

template <typename T, int32_t N>
__device__ __forceinline__ Vector<T, N> elements(const Words<T, N>& words) {
  return *reinterpret_cast<const Vector<T, N>*>(&words);
}

template <int32_t N, typename T>
__device__ __forceinline__ Vector<T, N> load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}

// As `load`, 16 bytes of what is read once: it takes no room that others' data may have in caches.
template <typename T>
__device__ __forceinline__ Vector<T, kVectorWidth<T>> load_once(const T* from) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  return *reinterpret_cast<const Vector<T, kVectorWidth<T>>*>(&bits);
}

template <int32_t N, typename T>
__device__ __forceinline__ void store(T* to, const Vector<T, N>& vector) {
  *reinterpret_cast<Vector<T, N>*>(to) = vector;
}

// What `join` makes of the values of a warp's threads, in every thread; the order is fixed.
template <typename V, typename Join>
__device__ __forceinline__ V warp_reduce(V value, Join join) {
  for (int32_t offset = kWarp / 2; offset > 0; offset /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

template <typename V>
__device__ __forceinline__ V warp_sum(V value) {
  return warp_reduce(value, [](V a, V b) { return a + b; });
}

__device__ __forceinline__ float warp_max(float value) {
  return warp_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

// Reduces over a block of whole warps, at most 1024 threads; the result is in every thread.
// Every thread of the block must call it.
template <typename V, typename Reduce>
__device__ __forceinline__ V block_reduce(V value, V neutral, Reduce reduce_warp) {
  __shared__ V of_warp[kWarp];
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t warp = threadIdx.x / kWarp;
  value = reduce_warp(value);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  value = reduce_warp(lane < static_cast<int32_t>(blockDim.x) / kWarp ? of_warp[lane] : neutral);
  // The next reduction may overwrite `of_warp` only when all have read it.
  __syncthreads();
  return value;
}

template <typename V>
__device__ __forceinline__ V block_sum(V value) {
  return block_reduce(value, V(0), [](V v) { return warp_sum(v); });
}

__device__ __forceinline__ float block_max(float value) {
  return block_reduce(value, -INFINITY, [](float v) { return warp_max(v); });
}

// Threads for `work` independent items of one row: whole warps, at most `most`.
inline int32_t threads_for(int64_t work, int32_t most) {
  const int64_t threads = (work + kWarp - 1) / kWarp * kWarp;
  return static_cast<int32_t>(threads < most ? threads : most);
}

// Blocks of `threads` for `items`; a kernel whose threads go on a whole grid further needs no more.
inline uint32_t grid_for(int64_t items, int32_t threads) {
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = (items + threads - 1) / threads;
  return static_cast<uint32_t>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

// Whether kernels may start before those in front of them have ended, on the GPUs that are compiled for.
constexpr bool kEarlyLaunches = CANDLEPOWER_COMPUTE_CAP >= 90;

// Waits until the kernels before this one in the stream have ended, and their writes can be seen. A kernel that `launch_early` starts
// reads nothing before it that another kernel writes, and writes nothing.
__device__ __forceinline__ void wait_for_inputs() {
  if constexpr (kEarlyLaunches) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel of the stream start where this one's blocks leave room, if `launch_early` starts it. Not before this one has waited
// itself: blocks that only wait would take the room of those that work. A kernel that fills the GPU says it when its blocks are nearly done.
__device__ __forceinline__ void let_next_start() {
  if constexpr (kEarlyLaunches) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Launches a kernel that may start before the one in front of it in the stream has ended: `wait_for_inputs` is where it waits for that.
template <typename Args>
void launch_early(void (*kernel)(Args), dim3 grid, int32_t threads, cudaStream_t stream, const Args& args,
                  size_t shared_bytes = 0) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = kEarlyLaunches ? 1 : 0;
  // What it says no to, cudaGetLastError says, too.
  (void)cudaLaunchKernelEx(&config, kernel, args);
}

// Calls `launch` with a value of the 16-bit element type and answers the launch's error.
template <typename Launch>
int32_t with_half_type(int32_t dtype, Launch launch) {
  switch (static_cast<Dtype>(dtype)) {
    case Dtype::kBf16: launch(__nv_bfloat16{}); break;
    case Dtype::kF16: launch(__half{}); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// As `with_half_type`, and f32.
template <typename Launch>
int32_t with_float_type(int32_t dtype, Launch launch) {
  if (static_cast<Dtype>(dtype) != Dtype::kF32) return with_half_type(dtype, launch);
  launch(float{});
  return cudaGetLastError();
}

}  // namespace candlepower
