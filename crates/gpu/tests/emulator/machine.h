// What kernels that were compiled for the CPU ask of the emulated GPU: nvcc's stand-in includes it in each of them,
// and libcuda.cpp answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulated {

// What planners ask of a GPU and a launch is refused for. Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities.
struct Model {
  const char* name;
  int major, minor;  // of its compute capability
  int multiprocessors;
  int shared_bytes;  // of a multiprocessor
  int block_shared_bytes;
  int threads;  // of a multiprocessor
  int blocks;   // of a multiprocessor
};

// The first is emulated where none is named.
constexpr Model kModels[] = {
    {"h100", 9, 0, 132, 228 << 10, 227 << 10, 2048, 32},
    {"a100", 8, 0, 108, 164 << 10, 163 << 10, 2048, 32},
    {"l40s", 8, 9, 142, 100 << 10, 99 << 10, 1536, 24},
};

// Of a block in any of them.
constexpr int kMostSharedBytes = 227 << 10;
constexpr int kSharedBytesByDefault = 48 << 10;
// What a block takes beside its own.
constexpr int kReservedSharedBytes = 1 << 10;

struct Extent {
  uint32_t x, y, z;
};

// Where the thread that runs now is.
struct Place {
  Extent thread, block, block_dim, grid_dim;
};

// What all lanes of a collective operation brought, by lane; null where a lane takes no part.
using Combine = void (*)(void* const operands[32]);

// What a lane brings to a product of matrices in pairs of 16 bits, and what it adds to.
struct Product {
  uint32_t a[4];
  uint32_t b[2];
  float sum[4];
};

enum class Element : uint8_t { kBf16, kF16 };

// How a thread accesses memory: an atomic function changes it.
enum class Access : uint8_t { kRead, kWrite, kAtomic };

struct Launch {
  const char* name;
  const void* kernel;
  Extent grid, block;
  size_t shared_bytes;
  // Its blocks may wait for each other.
  bool cooperative;
  // On a GPU it may start before those in front of it have ended.
  bool early;
  std::function<void()> body;
};

struct Machine {
  const Model& model;
  // Where the running thread is; null while none runs.
  const Place* place = nullptr;
  // The block's shared memory.
  unsigned char* shared = nullptr;
  // Whether the running block is watched.
  bool watches_block = false;
  // Whether what runs is to tell of its accesses, but those of the threads' stacks: a variable of the program with the kernels.
  bool* watches = nullptr;
  uintptr_t stacks_begin = 0, stacks_end = 0;

  explicit Machine(const Model& emulated) : model(emulated) {}

  // Queues a kernel; answers CUDA's error number.
  virtual int launch(void* stream, Launch launch) = 0;
  virtual int copy(void* stream, void* to, const void* from, size_t bytes) = 0;
  virtual void allow_shared(const void* kernel, size_t bytes) = 0;

  // Of the running thread: waits for its block.
  virtual void barrier() = 0;
  // Of the running thread: waits for all blocks of a cooperative launch.
  virtual void grid_barrier() = 0;
  // Of the running thread: waits for the lanes of `mask`; the last one to come calls `combine` for all.
  virtual void collective(uint32_t mask, void* operand, Combine combine) = 0;
  // What all lanes brought: sum += a b for a of 16 by 16 and b of 16 by 8.
  virtual void multiply(Element element, void* const operands[32]) = 0;
  // Of the running thread: waits for the kernels before.
  virtual void wait_for_inputs() = 0;
  // The block's variable `key`.
  virtual void* variable(const void* key, size_t bytes, size_t alignment) = 0;
  virtual unsigned char* dynamic_shared() = 0;
  // Bytes that arrive in shared memory when their group has been waited for.
  virtual void copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t present) = 0;
  virtual void end_group() = 0;
  virtual void wait_for_groups(uint32_t but) = 0;
  // An access of the running thread, by what comes before `code`.
  virtual void accessed(const void* at, size_t bytes, Access access, const void* code) = 0;
  // An access of a lane of the collective that is being combined.
  virtual void lane_accessed(uint32_t lane, const void* at, size_t bytes, Access access) = 0;
  [[noreturn]] virtual void fault(const char* what) = 0;
};

// The name of the function in libcuda.so.1 that answers a `Machine*`.
constexpr const char* kMachine = "candlepower_emulated_machine";

}  // namespace emulated
