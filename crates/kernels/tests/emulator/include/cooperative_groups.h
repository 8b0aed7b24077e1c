// Of cooperative groups what FlashInfer uses: the block of the running thread.
#pragma once

namespace cooperative_groups {

struct thread_block {
  void sync() const { emulated::machine->barrier(); }
  unsigned int thread_rank() const { return emulated::linear_thread(); }
};

inline thread_block this_thread_block() { return {}; }
// Named, and not used.
inline int this_grid() { return 0; }

}  // namespace cooperative_groups
