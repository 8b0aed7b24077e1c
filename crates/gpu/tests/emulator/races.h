// Finds bytes that two threads of a launch access, one of them to write, with nothing between them that orders the accesses:
// on a GPU the one or the other comes first. Within a block __syncthreads orders, within a warp __syncwarp and a store of
// matrices, too; nothing orders the blocks of a launch but atomics with themselves. Two that write the same value do not
// race. What is remembered is the last accesses of each four bytes; an access is told by watch.h.
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
  // `shared` is the memory that each block has to itself.
  explicit Races(const void* shared) : shared_(reinterpret_cast<uintptr_t>(shared)) {}

  void begin_launch(const Launch& launch);
  // Ends the program if the launch had races.
  void end_launch();
  void begin_block(uint32_t block, uint32_t threads);
  // All threads of the block have met.
  void at_barrier();
  // The lanes of `mask` of the warp whose first thread is `first` have met.
  void sync_warp(uint32_t first, uint32_t mask);
  void access(uint32_t thread, const void* at, size_t bytes, Access access, const void* code);
  // Memory that is there no more.
  void forget(const void* begin, size_t bytes);

 private:
  // Who accessed a byte, and when. None has the launch 0.
  struct Stamp {
    uint32_t launch;
    uint32_t block;
    // The thread, which of the four bytes, whether it was atomic, and the thread's time.
    uint32_t bits;
    // Bytes from `code_`.
    int32_t code;

    uint32_t thread() const { return bits & 1023; }
    uint32_t bytes() const { return bits >> 10 & 15; }
    bool atomic() const { return (bits >> 14 & 1) != 0; }
    uint32_t time() const { return bits >> 15; }
  };

  // The last write; the last thread that read; and another one, of another warp if there was one.
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

  // A second write, which is about to be made, and what the first one has left.
  struct Rewrite {
    Race race;
    uint32_t value;
  };

  static constexpr uintptr_t kWord = 4;
  static constexpr uintptr_t kPage = 4096;
  struct Page {
    Word words[kPage / kWord];
  };

  // A thread's time, which moves when it waits for its warp, and the times of its warp's lanes up to which it knows them.
  struct Lane {
    uint32_t time = 1;
    uint32_t known[32] = {};
  };

  Page& page(uintptr_t number);
  bool is_ordered(const Stamp& before, const Stamp& now, uintptr_t at) const;
  static uint32_t value_of(const Race& race);
  // Reports the writes since the last call that changed what others had written.
  void compare_rewrites();
  void report(const Race& race);

  const uintptr_t shared_;
  const char* code_ = nullptr;
  const Launch* launch_ = nullptr;
  uint32_t launch_number_ = 0;
  uint32_t block_ = 0;
  // The newest time of the block's threads, and the one at which they met.
  uint32_t time_ = 1;
  uint32_t met_ = 0;
  std::vector<Lane> lanes_;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  // Some that were asked for, each in a place of its number's.
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
