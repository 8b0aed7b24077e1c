// CUDA for the CPU. Sources compiled by the stand-in for nvcc include this file before anything else. A thread of a
// block is a fiber, and operations of several threads go through the machine of machine.h.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <cuda/cmath>
#include <cuda/std/limits>
#include <type_traits>
#include <utility>

#include "machine.h"

namespace emulated {

Machine* find_machine();

// Null if libcuda.so.1 is not the emulator, or does not exist.
inline Machine* const machine = find_machine();

}  // namespace emulated

#include "watch.h"

namespace emulated {

inline Machine* find_machine() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* find = library == nullptr ? nullptr : reinterpret_cast<Machine* (*)()>(dlsym(library, kMachine));
  Machine* found = find == nullptr ? nullptr : find();
  if (found != nullptr) found->watches = &watching;
  return found;
}

// Replacements of `threadIdx`, `blockIdx`, `blockDim` and `gridDim`. They are const functions because their values
// never change for a thread.
#define EMULATED_PLACE EMULATED_UNWATCHED __attribute__((const, noinline)) inline
EMULATED_UNWATCHED inline uint3 triple(const Extent& e) { return {e.x, e.y, e.z}; }
EMULATED_PLACE uint3 thread_index() { return triple(machine->place->thread); }
EMULATED_PLACE uint3 block_index() { return triple(machine->place->block); }
EMULATED_PLACE dim3 block_size() { return triple(machine->place->block_dim); }
EMULATED_PLACE dim3 grid_size() { return triple(machine->place->grid_dim); }

EMULATED_PLACE uint32_t linear_thread() {
  const Place& at = *machine->place;
  return (at.thread.z * at.block_dim.y + at.thread.y) * at.block_dim.x + at.thread.x;
}

inline uint32_t lane() { return linear_thread() % 32; }

// ---- Launches --------------------------------------------------------------------------------------

inline thread_local cudaError_t last_error = cudaSuccess;

inline cudaError_t note(int error) {
  if (error != 0) last_error = static_cast<cudaError_t>(error);
  return static_cast<cudaError_t>(error);
}

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool cooperative = false;
  bool early = false;
};

inline Configuration configuration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  return {grid, block, shared_bytes, stream};
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(const char* name, const Configuration& with, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (machine == nullptr) return note(cudaErrorNoDevice);
  // Parameters are copied at the launch, not when the kernel runs.
  auto body = [kernel, ... copied = Parameters(std::forward<Arguments>(arguments))] { kernel(copied...); };
  const auto extent = [](dim3 d) { return Extent{d.x, d.y, d.z}; };
  return note(machine->launch(with.stream, {name, reinterpret_cast<const void*>(kernel), extent(with.grid), extent(with.block),
                                            with.shared_bytes, with.cooperative, with.early, std::move(body)}));
}

template <typename... Parameters, size_t... kIndex>
cudaError_t launch_pointers(const char* name, const Configuration& with, void (*kernel)(Parameters...), void** arguments,
                            std::index_sequence<kIndex...>) {
  return launch(name, with, kernel, *static_cast<std::remove_cvref_t<Parameters>*>(arguments[kIndex])...);
}

// cudaLaunchKernel and cudaLaunchCooperativeKernel. The types of the arguments come from the kernel's parameters.
template <bool kCooperative, typename... Parameters>
cudaError_t launch_kernel(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                          size_t shared_bytes, cudaStream_t stream) {
  return launch_pointers(name, {grid, block, shared_bytes, stream, kCooperative}, kernel, arguments,
                         std::index_sequence_for<Parameters...>());
}

// A kernel whose type was erased. No code of ours launches one.
template <bool kCooperative>
cudaError_t launch_kernel(const char*, void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return note(cudaErrorNotSupported);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_ex(const cudaLaunchConfig_t* with, void (*kernel)(Parameters...), Arguments&&... arguments) {
  bool early = false;
  for (unsigned int i = 0; i < with->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = with->attrs[i];
    early |= attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
             attribute.val.programmaticStreamSerializationAllowed != 0;
  }
  return launch("a kernel", {with->gridDim, with->blockDim, with->dynamicSmemBytes, with->stream, false, early}, kernel,
                std::forward<Arguments>(arguments)...);
}

inline cudaError_t get_last_error() { return std::exchange(last_error, cudaSuccess); }

template <typename Kernel>
cudaError_t set_attribute(Kernel kernel, cudaFuncAttribute attribute, int value) {
  if (machine == nullptr) return note(cudaErrorNoDevice);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > machine->model.block_shared_bytes) return note(cudaErrorInvalidValue);
    machine->allow_shared(reinterpret_cast<const void*>(kernel), value);
  }
  return cudaSuccess;
}

inline cudaError_t device_attribute(int* value, cudaDeviceAttr attribute, int) {
  if (machine == nullptr) return note(cudaErrorNoDevice);
  const Model& model = machine->model;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = model.multiprocessors; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = model.shared_bytes; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = model.block_shared_bytes; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = kReservedSharedBytes; break;
    case cudaDevAttrComputeCapabilityMajor: *value = model.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = model.minor; break;
    default: return note(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

template <typename Kernel>
cudaError_t occupancy(int* blocks, Kernel, int threads, size_t shared_bytes) {
  if (machine == nullptr) return note(cudaErrorNoDevice);
  const Model& model = machine->model;
  const int by_shared = model.shared_bytes / static_cast<int>(shared_bytes + kReservedSharedBytes);
  *blocks = std::min({by_shared, model.threads / threads, model.blocks});
  return cudaSuccess;
}

inline cudaError_t get_device(int* device) { return *device = 0, cudaSuccess; }

inline cudaError_t memcpy_async(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return machine == nullptr ? note(cudaErrorNoDevice) : note(machine->copy(stream, to, from, bytes));
}

// ---- Shared memory ---------------------------------------------------------------------------------

// A static shared variable of the block. Each declaration in a function has its own `key`.
template <typename T>
T& variable(const void* key) {
  return *static_cast<T*>(machine->variable(key, sizeof(T), alignof(T)));
}

// The dynamic shared memory of the launch, as an array like in CUDA.
template <typename T>
auto& dynamic_shared() {
  return *reinterpret_cast<T(*)[kMaxSharedBytes / sizeof(T)]>(machine->dynamic_shared());
}

EMULATED_UNWATCHED inline void* at_shared(uint32_t address, uint32_t bytes) {
  if (address % bytes != 0) machine->fault("an address of shared memory is not a multiple of what is accessed");
  if (address + bytes > kMaxSharedBytes) machine->fault("an address is beyond shared memory");
  return machine->shared + address;
}

// ---- Operations of several lanes -------------------------------------------------------------------

template <typename T>
struct Shuffle {
  T value, result;
  uint32_t source;
};

template <typename T>
EMULATED_UNWATCHED void shuffle_lanes(void* const operands[32]) {
  for (uint32_t i = 0; i < 32; ++i) {
    auto* to = static_cast<Shuffle<T>*>(operands[i]);
    if (to == nullptr) continue;
    const auto* from = static_cast<const Shuffle<T>*>(operands[to->source]);
    if (from == nullptr) machine->fault("a lane reads of one that takes no part");
    to->result = from->value;
  }
}

template <typename T>
EMULATED_UNWATCHED T shuffle(uint32_t mask, T value, uint32_t source) {
  Shuffle<T> own{value, value, source};
  machine->collective(mask, &own, shuffle_lanes<T>);
  return own.result;
}

struct Vote {
  bool value;
  uint32_t result;
};

EMULATED_UNWATCHED inline void count_votes(void* const operands[32]) {
  uint32_t votes = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    if (operands[i] != nullptr && static_cast<Vote*>(operands[i])->value) votes |= 1u << i;
  }
  for (uint32_t i = 0; i < 32; ++i) {
    if (operands[i] != nullptr) static_cast<Vote*>(operands[i])->result = votes;
  }
}

EMULATED_UNWATCHED inline uint32_t ballot(uint32_t mask, bool value) {
  Vote own{value, 0};
  machine->collective(mask, &own, count_votes);
  return own.result;
}

inline void sync_warp(uint32_t mask) { machine->collective(mask, nullptr, nullptr); }

}  // namespace emulated

// ---- CUDA's names ----------------------------------------------------------------------------------

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#define __restrict__ __restrict

#define cudaGetLastError emulated::get_last_error
#define cudaFuncSetAttribute emulated::set_attribute
#define cudaDeviceGetAttribute emulated::device_attribute
#define cudaGetDevice emulated::get_device
#define cudaMemcpyAsync emulated::memcpy_async
#define cudaLaunchKernelEx emulated::launch_ex
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor emulated::occupancy

inline void __syncthreads() { emulated::machine->barrier(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { emulated::sync_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source) {
  return emulated::shuffle(mask, value, static_cast<uint32_t>(source) % 32);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
  return emulated::shuffle(mask, value, emulated::lane() ^ static_cast<uint32_t>(bits));
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t distance) {
  const uint32_t lane = emulated::lane();
  return emulated::shuffle(mask, value, lane >= distance ? lane - distance : lane);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, uint32_t distance) {
  const uint32_t lane = emulated::lane();
  return emulated::shuffle(mask, value, lane + distance < 32 ? lane + distance : lane);
}
inline uint32_t __ballot_sync(uint32_t mask, bool value) { return emulated::ballot(mask, value); }
inline bool __any_sync(uint32_t mask, bool value) { return emulated::ballot(mask, value) != 0; }
inline bool __all_sync(uint32_t mask, bool value) { return emulated::ballot(mask, !value) == 0; }
inline uint32_t __activemask() { return 0xffffffffu; }

// Threads switch only where they wait, so nothing can run in between.
template <typename T, typename V>
EMULATED_UNWATCHED T atomicAdd(T* at, V value) {
  emulated::tell(at, sizeof *at, emulated::Access::kAtomic, __builtin_return_address(0));
  const T before = *at;
  *at = static_cast<T>(before + value);
  return before;
}
template <typename T, typename V>
EMULATED_UNWATCHED T atomicOr(T* at, V value) {
  emulated::tell(at, sizeof *at, emulated::Access::kAtomic, __builtin_return_address(0));
  const T before = *at;
  *at = before | value;
  return before;
}
template <typename T, typename V>
EMULATED_UNWATCHED T atomicMin(T* at, V value) {
  emulated::tell(at, sizeof *at, emulated::Access::kAtomic, __builtin_return_address(0));
  const T before = *at;
  *at = std::min<T>(before, value);
  return before;
}
template <typename T, typename V>
EMULATED_UNWATCHED T atomicMax(T* at, V value) {
  emulated::tell(at, sizeof *at, emulated::Access::kAtomic, __builtin_return_address(0));
  const T before = *at;
  *at = std::max<T>(before, value);
  return before;
}

// CUDA's functions ignore NaN.
template <typename A, typename B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmax(T(a), T(b));
  } else {
    return std::max(T(a), T(b));
  }
}
template <typename A, typename B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmin(T(a), T(b));
  } else {
    return std::min(T(a), T(b));
  }
}
inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __ffs(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline int __clz(uint32_t bits) { return std::countl_zero(bits); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t(a) * b >> 32); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= uint32_t(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return chosen;
}
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float a, float b) { return a / b; }
// Rounded once, because the product and the sum are exact in double.
inline __nv_bfloat16 fused(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(static_cast<double>(float(a)) * float(b) + float(c));
}
inline __half fused(__half a, __half b, __half c) {
  return __double2half(static_cast<double>(float(a)) * float(b) + float(c));
}
template <typename Pair>
Pair __hfma2(Pair a, Pair b, Pair c) {
  Pair sum;
  sum.x = fused(a.x, b.x, c.x);
  sum.y = fused(a.y, b.y, c.y);
  return sum;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
T __ldca(const T* from) {
  return *from;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline size_t __cvta_generic_to_shared(const void* pointer) {
  const auto* byte = static_cast<const unsigned char*>(pointer);
  const ptrdiff_t offset = byte - emulated::machine->shared;
  if (offset < 0 || offset >= emulated::kMaxSharedBytes) emulated::machine->fault("a pointer is not to shared memory");
  return static_cast<size_t>(offset);
}

#include "ptx.h"

// Versions that the kernels' headers ask for.
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 900
