// Runs the threads of one block: each is a fiber that goes on until it waits for others.
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
  // Where its stack is while it does not run.
  void* stack = nullptr;
  uint32_t mask = 0;
  void* operand = nullptr;
  Combine combine = nullptr;
  // Whether it has waited for all blocks.
  bool passed_grid_barrier = false;
  // Whether it has waited for the kernels before.
  bool has_inputs = false;
  // What called the collective.
  const void* code = nullptr;
  // Copies to shared memory that are under way: groups, and the one that is not ended.
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open_group;
};

class Block {
 public:
  // `machine` is told where the running thread is, and of what it is to tell.
  explicit Block(Machine& machine);
  ~Block();
  Block(const Block&) = delete;

  // From now on a launch with a race ends the program.
  void find_races() { races_ = std::make_unique<Races>(machine_.shared); }

  // Runs all blocks of a launch, one after the other. Where threads wait for all blocks it runs twice: at first each thread ends there,
  // then it goes on there. What comes before is done again, which is right where that writes what depends on inputs alone, to memory
  // that what comes behind does not write: it writes the same numbers as at first.
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
  // Memory that is there no more.
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
  // Whether a second run must be.
  bool ended_at_grid_barrier_ = false;
  // Every second launch runs its threads and blocks from the last to the first: who does not wait for others is found out.
  bool backwards_ = false;
  std::vector<Fiber> fibers_;
  Fiber* current_ = nullptr;
  void* scheduler_stack_ = nullptr;
  unsigned char* stacks_ = nullptr;
  unsigned char* shared_ = nullptr;
  std::vector<Variable> variables_;
  size_t shared_used_ = 0;
  // Null where nobody looks for races.
  std::unique_ptr<Races> races_;
};

}  // namespace emulated
