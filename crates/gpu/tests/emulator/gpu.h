// The emulated GPU: its memory, its queue of work, and its recordings. One lock protects all of it.
#pragma once

#include <cuda.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "block.h"

namespace emulated {

using Work = std::function<void()>;

// A recording of a stream, and the thread that records it.
struct Capture {
  std::thread::id thread;
  std::vector<Work> work;
};

struct Gpu final : Machine {
  static Gpu& the();

  // Maximum number of queued operations.
  static constexpr size_t kMaxQueued = 1 << 16;

  std::mutex lock;
  Block block;
  const int ordinals;
  const size_t total_bytes;
  size_t used_bytes = 0;
  size_t most_used_bytes = 0;
  bool is_eager;
  uint64_t submitted = 0;
  uint64_t finished = 0;
  std::deque<Work> queue;
  std::map<void*, Capture> capturing;
  std::map<const void*, size_t> pinned;

  CUresult submit(void* stream, Work work);
  // Runs the queued work up to operation `number`.
  void finish(uint64_t number);
  CUresult wait();
  void* map(size_t bytes);
  void unmap(void* memory);
  CUresult allocate(CUdeviceptr* memory, size_t bytes);
  CUresult release(void* stream, CUdeviceptr memory);
  CUresult upload(void* stream, void* to, const void* from, size_t bytes);
  CUresult download(void* stream, void* to, const void* from, size_t bytes);

  int launch(void* stream, Launch launch) override;
  int copy(void* stream, void* to, const void* from, size_t bytes) override;
  void allow_shared(const void* kernel, size_t bytes) override;
  void barrier() override;
  void grid_barrier() override;
  void wait_for_inputs() override;
  void collective(uint32_t mask, void* operand, Combine combine) override;
  void multiply(Element element, void* const operands[32]) override;
  void* variable(const void* key, size_t bytes, size_t alignment) override;
  unsigned char* dynamic_shared() override;
  void copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t present) override;
  void end_group() override;
  void wait_for_groups(uint32_t but) override;
  void prefetched(const void* at) override;
  void accessed(const void* at, size_t bytes, Access access, const void* code) override;
  void lane_accessed(uint32_t lane, const void* at, size_t bytes, Access access) override;
  [[noreturn]] void fault(const char* what) override;

 private:
  struct Mapping {
    void* first;
    size_t mapped;
    size_t bytes;
  };

  Gpu();
  bool is_pinned(const void* memory) const;
  // Bytes from `begin` to before `end`.
  struct Range {
    uintptr_t begin = 0, end = 0;
  };
  bool is_allocated(uintptr_t begin, size_t bytes);
  Range range_of(uintptr_t at) const;
  // Whether the calling thread is recording a stream, during which it may not wait or allocate.
  bool is_capturing() const;

  std::map<void*, Mapping> mappings;
  // Cache of `range_of` by page number modulo its size.
  std::array<Range, 256> known_ranges{};
  std::map<const void*, size_t> allowed_shared;
};

}  // namespace emulated
