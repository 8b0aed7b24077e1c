// Finds races: bytes that two threads of a launch access, at least one of them to write, without anything that orders
// the accesses.
//
// Within a block, __syncthreads orders accesses. Within a warp, __syncwarp and a store of matrices do too. Nothing
// orders the blocks of a launch, except that atomics do not race with each other. Two writes of the same value are not
// a race. The last accesses of every four bytes are kept; watch.h reports the accesses.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "machine.h"

namespace emulated {

class Races {
 public:
  // `shared` is the memory that each block has for itself.
  explicit Races(const void* shared) : shared_(reinterpret_cast<uintptr_t>(shared)) {}

  void begin_launch(const Launch& launch);
  // Ends the program if the launch had races.
  void end_launch();
  void begin_block(uint32_t block, uint32_t threads);
  // All threads of the block have reached a barrier.
  void at_barrier();
  // The lanes of `mask`, of the warp whose first thread is `first`, have reached a barrier.
  void sync_warp(uint32_t first, uint32_t mask);
  void access(uint32_t thread, const void* at, size_t bytes, Access access, const void* code);
  // Drops the recorded accesses to memory that has been freed.
  void forget(const void* begin, size_t bytes);

 private:
  // The thread that accessed a byte, and the time. Launch 0 means no access.
  struct Stamp {
    uint32_t launch;
    uint32_t block;
    // The thread, a mask of the four bytes, whether the access was atomic, and the thread's time.
    uint32_t bits;
    // Address of the access, in bytes from `code_`.
    int32_t code;

    uint32_t thread() const { return bits & 1023; }
    uint32_t bytes() const { return bits >> 10 & 15; }
    bool atomic() const { return (bits >> 14 & 1) != 0; }
    uint32_t time() const { return bits >> 15; }
  };

  // The last write, the last reader, and another reader, from another warp if there was one.
  struct Word {
    Stamp write, read, other_read;
  };

  // Two accesses that nothing orders.
  struct Race {
    Stamp before, now;
    Access access;
    bool wrote;
    uintptr_t at;
  };

  // A second write, which is about to happen, and the value that the first one left.
  struct Rewrite {
    Race race;
    uint32_t value;
  };

  static constexpr uintptr_t kWord = 4;
  static constexpr uintptr_t kPage = 4096;
  struct Page {
    Word words[kPage / kWord];
  };

  // A thread's time, which advances at each barrier of its warp; and for each lane of the warp, the latest time that is
  // ordered before this thread.
  struct Lane {
    uint32_t time = 1;
    uint32_t known[32] = {};
  };

  Page& page(uintptr_t number);
  bool is_ordered(const Stamp& before, const Stamp& now, uintptr_t at) const;
  static uint32_t value_of(const Race& race);
  // Reports the writes since the last call that changed a value written by another thread.
  void compare_rewrites();
  void report(const Race& race);

  const uintptr_t shared_;
  const char* code_ = nullptr;
  const Launch* launch_ = nullptr;
  uint32_t launch_number_ = 0;
  uint32_t block_ = 0;
  // The newest time of the block's threads, and the time of their last barrier.
  uint32_t time_ = 1;
  uint32_t met_ = 0;
  std::vector<Lane> lanes_;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  // Cache of `pages_`, by page number modulo its size.
  struct Known {
    uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Known, 256> known_{};
  std::vector<Rewrite> rewrites_;
  std::set<std::pair<int32_t, int32_t>> reported_;
  bool found_ = false;
};

}  // namespace emulated
