// The parts of cooperative groups that FlashInfer uses: the block of the running thread, and the grid.
#pragma once

namespace cooperative_groups {

struct thread_block {
  void sync() const { emulated::machine->barrier(); }
  unsigned int thread_rank() const { return emulated::linear_thread(); }
};

inline thread_block this_thread_block() { return {}; }
struct grid_group {
  void sync() const { emulated::machine->grid_barrier(); }
};

inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
