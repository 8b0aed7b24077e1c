// The interface between kernels that were compiled for the CPU and the emulated GPU. The stand-in for nvcc includes it
// in each kernel source, and libcuda.cpp implements it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulated {

// Properties of a GPU that planners read, and the limits of a launch. Source: NVIDIA, CUDA C++ Programming Guide,
// Compute Capabilities.
struct Model {
  const char* name;
  int major, minor;  // compute capability
  int multiprocessors;
  int shared_bytes;  // per multiprocessor
  int block_shared_bytes;
  int threads;  // per multiprocessor
  int blocks;   // per multiprocessor
};

// The first one is the default.
constexpr Model kModels[] = {
    {"h100", 9, 0, 132, 228 << 10, 227 << 10, 2048, 32},
    {"a100", 8, 0, 108, 164 << 10, 163 << 10, 2048, 32},
    {"l40s", 8, 9, 142, 100 << 10, 99 << 10, 1536, 24},
};

// Shared memory of a block, for any of the models.
constexpr int kMaxSharedBytes = 227 << 10;
constexpr int kSharedBytesByDefault = 48 << 10;
// Shared memory that the system reserves in each block.
constexpr int kReservedSharedBytes = 1 << 10;

struct Extent {
  uint32_t x, y, z;
};

// Position of the running thread.
struct Place {
  Extent thread, block, block_dim, grid_dim;
};

// Combines the operands of all lanes of a collective operation, by lane. Null for lanes that take no part.
using Combine = void (*)(void* const operands[32]);

// A lane's operands of a matrix product, as pairs of 16 bits, and its accumulator.
struct Product {
  uint32_t a[4];
  uint32_t b[2];
  float sum[4];
};

enum class Element : uint8_t { kBf16, kF16 };

// Kind of an access. An atomic function reads and writes.
enum class Access : uint8_t { kRead, kWrite, kAtomic };

struct Launch {
  const char* name;
  const void* kernel;
  Extent grid, block;
  size_t shared_bytes;
  // Whether its blocks may wait for each other.
  bool cooperative;
  // Whether a GPU may start the kernel before the preceding ones have ended.
  bool early;
  std::function<void()> body;
};

struct Machine {
  const Model& model;
  // Position of the running thread; null if none runs.
  const Place* place = nullptr;
  // The block's shared memory.
  unsigned char* shared = nullptr;
  // Whether the running block is watched.
  bool watches_block = false;
  // Whether the running code must report its accesses, except those of the threads' stacks. The flag is a variable of
  // the program with the kernels.
  bool* watches = nullptr;
  uintptr_t stacks_begin = 0, stacks_end = 0;

  explicit Machine(const Model& emulated) : model(emulated) {}

  // Queues a kernel, and returns a CUDA error number.
  virtual int launch(void* stream, Launch launch) = 0;
  virtual int copy(void* stream, void* to, const void* from, size_t bytes) = 0;
  virtual void allow_shared(const void* kernel, size_t bytes) = 0;

  // Makes the running thread wait for its block.
  virtual void barrier() = 0;
  // Makes the running thread wait for all blocks of a cooperative launch.
  virtual void grid_barrier() = 0;
  // Makes the running thread wait for the lanes of `mask`. The last lane to arrive calls `combine` for all of them.
  virtual void collective(uint32_t mask, void* operand, Combine combine) = 0;
  // Computes sum += a b from the operands of all lanes, for a of 16 by 16 and b of 16 by 8 elements.
  virtual void multiply(Element element, void* const operands[32]) = 0;
  // Makes the running thread wait for the preceding kernels.
  virtual void wait_for_inputs() = 0;
  // The block's shared variable for `key`.
  virtual void* variable(const void* key, size_t bytes, size_t alignment) = 0;
  virtual unsigned char* dynamic_shared() = 0;
  // Starts an asynchronous copy. Its bytes arrive in shared memory when its group is waited for.
  virtual void copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t present) = 0;
  virtual void end_group() = 0;
  virtual void wait_for_groups(uint32_t but) = 0;
  // Checks a request for the L2 cache.
  virtual void prefetched(const void* at) = 0;
  // Reports an access of the running thread. `code` is the address after the access.
  virtual void accessed(const void* at, size_t bytes, Access access, const void* code) = 0;
  // Reports an access of a lane of the collective operation that is being combined.
  virtual void lane_accessed(uint32_t lane, const void* at, size_t bytes, Access access) = 0;
  [[noreturn]] virtual void fault(const char* what) = 0;
};

// The name of the function in libcuda.so.1 that returns a `Machine*`.
constexpr const char* kMachine = "candlepower_emulated_machine";

}  // namespace emulated
