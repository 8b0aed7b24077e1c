// NCCL on emulated GPUs: sums and gathers of ranks that are threads or processes, through shared memory. A sum is
// computed in the order of the ranks and rounded once, unlike NCCL's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>

#include "gpu.h"

namespace {

using emulated::Gpu;

// Values of NCCL. Source: NVIDIA, NCCL, `ncclResult_t`, `ncclDataType_t`.
constexpr int kSystemError = 2;
constexpr int kInvalidUsage = 5;
constexpr int kHalf = 6;
constexpr int kFloat = 7;
constexpr int kBfloat16 = 9;

constexpr int kMaxRanks = 16;
constexpr size_t kSlotBytes = 1 << 20;
constexpr int kPollMicroseconds = 50;

struct Shared {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> rounds;
  alignas(64) unsigned char slots[kMaxRanks][kSlotBytes];
};

struct Group {
  Shared* shared;
  int rank, ranks;
  // Referenced by the group, and by each of its collectives in a graph.
  std::shared_ptr<int> held;

  // Waits for all ranks. Ranks that are threads of this process have the same GPU, so its lock is released for them
  // during the wait.
  void meet() const {
    const uint32_t round = shared->rounds;
    if (++shared->arrived == static_cast<uint32_t>(ranks)) {
      shared->arrived = 0;
      ++shared->rounds;
      return;
    }
    Gpu::the().lock.unlock();
    while (shared->rounds == round) usleep(kPollMicroseconds);
    Gpu::the().lock.lock();
  }

  // Calls `take` once the bytes of every rank from `first` on, at most a slot's size, are in the rank's slot.
  template <typename Take>
  void exchange(const void* from, size_t bytes, Take take) const {
    for (size_t first = 0; first < bytes; first += kSlotBytes) {
      const size_t count = std::min(kSlotBytes, bytes - first);
      std::memcpy(shared->slots[rank], static_cast<const char*>(from) + first, count);
      meet();
      take(first, count);
      meet();
    }
  }
};

size_t size_of(int type) { return type == kFloat ? 4 : 2; }

template <typename T>
void sum(const Group& group, const void* from, void* to, size_t count) {
  group.exchange(from, count * sizeof(T), [&](size_t first, size_t bytes) {
    auto* sums = reinterpret_cast<T*>(static_cast<char*>(to) + first);
    for (size_t i = 0; i < bytes / sizeof(T); ++i) {
      float sum = 0.0f;
      for (int rank = 0; rank < group.ranks; ++rank) {
        sum += static_cast<float>(reinterpret_cast<const T*>(group.shared->slots[rank])[i]);
      }
      sums[i] = T(sum);
    }
  });
}

int submit(const Group& group, void* stream, emulated::Work work) {
  const std::lock_guard guard(Gpu::the().lock);
  if (Gpu::the().capturing.count(stream) == 0) return Gpu::the().submit(stream, std::move(work));
  return Gpu::the().submit(stream, [work = std::move(work), held = group.held] { work(); });
}

// Identifier of a group, passed by value: the process that has the file, and its descriptor.
struct Id {
  pid_t process;
  int file;
  char unused[120];
};

}  // namespace

extern "C" {

int ncclGetUniqueId(Id* id) {
  *id = {getpid(), memfd_create("emulated NCCL", MFD_CLOEXEC), {}};
  return id->file >= 0 && ftruncate(id->file, sizeof(Shared)) == 0 ? 0 : kSystemError;
}

int ncclCommInitRank(Group** group, int ranks, Id id, int rank) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) return kInvalidUsage;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", id.process, id.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  void* shared = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (shared == MAP_FAILED) return kSystemError;
  *group = new Group{static_cast<Shared*>(shared), rank, ranks, std::make_shared<int>(0)};
  const std::lock_guard guard(Gpu::the().lock);
  if (ranks > 1) {
    // A rank whose results nobody reads must still take part.
    Gpu::the().is_eager = true;
    if (const CUresult finished = Gpu::the().wait(); finished != CUDA_SUCCESS) return kInvalidUsage;
  }
  (*group)->meet();
  return 0;
}

// NCCL waits, without exception, until no graph contains a collective of the group.
int ncclCommAbort(Group* group) {
  const std::lock_guard guard(Gpu::the().lock);
  Gpu::the().wait();
  if (group->held.use_count() > 1) Gpu::the().fault("a graph has a collective of a group of ranks that is ended");
  munmap(group->shared, sizeof(Shared));
  return delete group, 0;
}

const char* ncclGetErrorString(int) { return "the emulated NCCL refused"; }

int ncclAllReduce(const void* from, void* to, size_t count, int type, int, Group* group, void* stream) {
  switch (type) {
    case kHalf: return submit(*group, stream, [=] { sum<__half>(*group, from, to, count); });
    case kBfloat16: return submit(*group, stream, [=] { sum<__nv_bfloat16>(*group, from, to, count); });
    case kFloat: return submit(*group, stream, [=] { sum<float>(*group, from, to, count); });
    default: return kInvalidUsage;
  }
}

int ncclAllGather(const void* from, void* to, size_t count, int type, Group* group, void* stream) {
  const size_t bytes = count * size_of(type);
  return submit(*group, stream, [=] {
    group->exchange(from, bytes, [&](size_t first, size_t part) {
      for (int rank = 0; rank < group->ranks; ++rank) {
        std::memcpy(static_cast<char*>(to) + rank * bytes + first, group->shared->slots[rank], part);
      }
    });
  });
}

}  // extern "C"
