// Runs the threads of one block. Each thread is a fiber that runs until it waits for others.
#pragma once

#include <memory>
#include <vector>

#include "machine.h"
#include "races.h"

namespace emulated {

struct Copy {
  uint32_t to;
  uint32_t bytes;
  const void* code;
  unsigned char values[16];
};

// A thread of the running block.
struct Fiber {
  enum class State { kReady, kAtBarrier, kInCollective, kDone };

  Place place{};
  State state = State::kReady;
  // Stack pointer while the thread is suspended.
  void* stack = nullptr;
  uint32_t mask = 0;
  void* operand = nullptr;
  Combine combine = nullptr;
  // Whether the thread has passed the grid-wide barrier.
  bool passed_grid_barrier = false;
  // Whether the thread has waited for the preceding kernels.
  bool has_inputs = false;
  // Return address of the call of the collective operation.
  const void* code = nullptr;
  // Pending asynchronous copies to shared memory: closed groups, and the open group.
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open_group;
};

class Block {
 public:
  // Sets the fields of `machine` that describe the running thread, and the flag that makes kernels report accesses.
  explicit Block(Machine& machine);
  ~Block();
  Block(const Block&) = delete;

  // Enables the search for races. A launch with a race ends the program.
  void find_races() { races_ = std::make_unique<Races>(machine_.shared); }

  // Runs all blocks of a launch, one after the other.
  //
  // A launch whose threads wait at a grid-wide barrier runs twice. In the first run each thread ends at the barrier,
  // and in the second it continues after it. The code before the barrier so runs twice, which is correct if it writes
  // values that depend on inputs alone, to memory that the code after the barrier does not write.
  void run(const Launch& launch);

  void barrier();
  void grid_barrier();
  void wait_for_inputs() { current_->has_inputs = true; }
  void collective(uint32_t mask, void* operand, Combine combine, const void* code);
  void* variable(const void* key, size_t bytes, size_t alignment);
  unsigned char* dynamic_shared();
  void copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t present, const void* code);
  void end_group();
  void wait_for_groups(uint32_t but);
  void accessed(const void* at, size_t bytes, Access access, const void* code);
  void lane_accessed(uint32_t lane, const void* at, size_t bytes, Access access);
  // Drops the recorded accesses to memory that has been freed.
  void forget(const void* begin, size_t bytes);
  [[noreturn]] void fault(const char* what);

 private:
  struct Variable {
    const void* key;
    size_t begin;
  };

  void run_all();
  void run_one(const Extent& block);
  bool is_watched(const Fiber& fiber) const;
  void start(uint32_t thread);
  void resume(Fiber& fiber);
  void leave();
  bool run_warp(uint32_t first, uint32_t end);
  bool combine_lanes(uint32_t first, uint32_t end);
  static void enter();

  Machine& machine_;
  const Launch* launch_ = nullptr;
  bool is_second_run_ = false;
  // Whether a second run is needed.
  bool ended_at_grid_barrier_ = false;
  // Every second launch runs its threads and blocks from the last to the first, which reveals code that fails to wait
  // for others.
  bool backwards_ = false;
  std::vector<Fiber> fibers_;
  Fiber* current_ = nullptr;
  void* scheduler_stack_ = nullptr;
  unsigned char* stacks_ = nullptr;
  unsigned char* shared_ = nullptr;
  std::vector<Variable> variables_;
  size_t shared_used_ = 0;
  // Null if races are not searched for.
  std::unique_ptr<Races> races_;
};

}  // namespace emulated
