#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Saves the callee-saved registers and the stack pointer in *from, and continues on the stack `to`. x86-64, System V
// ABI.
extern "C" void emulated_switch(void** from, void* to);
__asm__(
    ".text\n.globl emulated_switch\n.hidden emulated_switch\n.type emulated_switch, @function\n"
    "emulated_switch:\n"
    "  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "  ret\n");

namespace emulated {

namespace {

constexpr uint32_t kMaxThreads = 1024;
constexpr size_t kStackBytes = 256 << 10;
// Number of blocks at each end of a launch that are watched for races. The blocks between them do the same work, and
// watching costs time: with 64 blocks at each end, the comparison of MoE products took 147 s, and with 16 it took 92 s.
constexpr uint64_t kWatchedBlocks = 16;
// Byte that fills memory before its first write. It makes NaN of every float type, and integers beyond every bound.
constexpr int kUnwritten = 0xff;

Block* entered = nullptr;

unsigned char* pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<unsigned char*>(memory);
}

}  // namespace

Block::Block(Machine& machine)
    : machine_(machine), stacks_(pages(kMaxThreads * kStackBytes)), shared_(pages(kMaxSharedBytes)) {
  machine.shared = shared_;
  machine.stacks_begin = reinterpret_cast<uintptr_t>(stacks_);
  machine.stacks_end = machine.stacks_begin + kMaxThreads * kStackBytes;
}

Block::~Block() {
  munmap(stacks_, kMaxThreads * kStackBytes);
  munmap(shared_, kMaxSharedBytes);
}

void Block::run(const Launch& launch) {
  launch_ = &launch;
  is_second_run_ = false;
  ended_at_grid_barrier_ = false;
  run_all();
  if (ended_at_grid_barrier_) {
    is_second_run_ = true;
    run_all();
  }
  launch_ = nullptr;
  current_ = nullptr;
}

void Block::run_all() {
  if (races_) races_->begin_launch(*launch_);
  backwards_ = !backwards_;
  const Extent& grid = launch_->grid;
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  for (uint64_t i = 0; i < blocks; ++i) {
    machine_.watches_block = races_ && (i < kWatchedBlocks || blocks - i <= kWatchedBlocks);
    const uint64_t at = backwards_ ? blocks - 1 - i : i;
    run_one({uint32_t(at % grid.x), uint32_t(at / grid.x % grid.y), uint32_t(at / grid.x / grid.y)});
  }
  if (races_) races_->end_launch();
}

void Block::run_one(const Extent& block) {
  const Extent& size = launch_->block;
  const uint32_t threads = size.x * size.y * size.z;
  std::memset(shared_, kUnwritten, std::max(shared_used_, launch_->shared_bytes));
  variables_.clear();
  // Dynamic shared memory lies first, since the static variables are not known yet.
  shared_used_ = launch_->shared_bytes;
  fibers_.resize(threads);
  entered = this;
  if (races_) races_->begin_block((block.z * launch_->grid.y + block.y) * launch_->grid.x + block.x, threads);
  for (uint32_t i = 0; i < threads; ++i) {
    const Extent thread{i % size.x, i / size.x % size.y, i / size.x / size.y};
    fibers_[i].place = {thread, block, size, launch_->grid};
    start(i);
  }
  while (true) {
    bool moved = false;
    for (uint32_t i = 0; i < threads; i += 32) {
      const uint32_t first = backwards_ ? (threads - 1 - i) / 32 * 32 : i;
      moved |= run_warp(first, std::min(first + 32, threads));
    }
    uint32_t done = 0;
    uint32_t waiting = 0;
    for (const Fiber& fiber : fibers_) {
      done += fiber.state == Fiber::State::kDone;
      waiting += fiber.state == Fiber::State::kAtBarrier;
    }
    if (done == threads) return;
    if (done + waiting == threads) {
      if (races_) races_->at_barrier();
      for (Fiber& fiber : fibers_) {
        if (fiber.state == Fiber::State::kAtBarrier) fiber.state = Fiber::State::kReady;
      }
    } else if (!moved) {
      for (Fiber& fiber : fibers_) {
        if (fiber.state == Fiber::State::kInCollective) current_ = &fiber;
      }
      fault("threads wait for others that never come");
    }
  }
}

// Runs the threads of a warp until each is done or waits for the block. Returns whether any thread made progress.
bool Block::run_warp(uint32_t first, uint32_t end) {
  bool moved = false;
  do {
    for (uint32_t i = first; i < end; ++i) {
      Fiber& fiber = fibers_[backwards_ ? first + end - 1 - i : i];
      if (fiber.state != Fiber::State::kReady) continue;
      resume(fiber);
      moved = true;
    }
  } while (combine_lanes(first, end));
  return moved;
}

// Runs the collective operations for which all lanes of a mask have arrived. Returns whether any lane can continue.
bool Block::combine_lanes(uint32_t first, uint32_t end) {
  bool any = false;
  for (uint32_t i = first; i < end; ++i) {
    if (fibers_[i].state != Fiber::State::kInCollective) continue;
    const uint32_t mask = fibers_[i].mask;
    const Combine combine = fibers_[i].combine;
    void* operands[32] = {};
    bool complete = true;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0 || first + lane >= end) continue;
      const Fiber& other = fibers_[first + lane];
      if (other.state == Fiber::State::kDone) continue;
      complete &= other.state == Fiber::State::kInCollective && other.mask == mask && other.combine == combine;
      operands[lane] = other.operand;
    }
    if (!complete) continue;
    current_ = &fibers_[i];
    if (combine != nullptr) combine(operands);
    if (races_ && combine == nullptr) races_->sync_warp(first, mask);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0 || first + lane >= end) continue;
      Fiber& other = fibers_[first + lane];
      if (other.state == Fiber::State::kInCollective) other.state = Fiber::State::kReady;
    }
    any = true;
  }
  return any;
}

void Block::start(uint32_t thread) {
  Fiber& fiber = fibers_[thread];
  fiber.state = Fiber::State::kReady;
  fiber.passed_grid_barrier = false;
  fiber.has_inputs = !launch_->early;
  fiber.groups.clear();
  fiber.open_group.clear();
  // The stacks are offset from multiples of a power of two, because they would otherwise compete for the same sets of
  // the CPU's caches.
  const size_t end = (thread + 1) * kStackBytes - thread % 61 * 448;
  auto* top = reinterpret_cast<void**>(stacks_ + end);
  *--top = nullptr;  // Return address of `enter`. At a function's entry, the stack pointer is 8 bytes off a multiple of 16.
  *--top = reinterpret_cast<void*>(&Block::enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack = top;
}

void Block::enter() {
  Block* block = entered;
  block->launch_->body();
  block->current_->state = Fiber::State::kDone;
  block->leave();
  std::abort();
}

void Block::resume(Fiber& fiber) {
  current_ = &fiber;
  machine_.place = &fiber.place;
  *machine_.watches = machine_.watches_block;
  emulated_switch(&scheduler_stack_, fiber.stack);
  *machine_.watches = false;
  machine_.place = nullptr;
}

void Block::leave() { emulated_switch(&current_->stack, scheduler_stack_); }

void Block::barrier() {
  current_->state = Fiber::State::kAtBarrier;
  leave();
}

void Block::grid_barrier() {
  if (!launch_->cooperative) fault("a kernel whose launch is not cooperative waits for all blocks");
  if (current_->passed_grid_barrier) fault("a kernel waits for all blocks twice");
  if (is_second_run_) {
    barrier();
    current_->passed_grid_barrier = true;
  } else {
    ended_at_grid_barrier_ = true;
    current_->state = Fiber::State::kDone;
    leave();
  }
}

void Block::collective(uint32_t mask, void* operand, Combine combine, const void* code) {
  Fiber& own = *current_;
  const Extent& at = own.place.thread;
  const Extent& size = own.place.block_dim;
  const uint32_t lane = ((at.z * size.y + at.y) * size.x + at.x) % 32;
  if ((mask >> lane & 1) == 0) fault("a lane is not in its own mask");
  own.state = Fiber::State::kInCollective;
  own.mask = mask;
  own.operand = operand;
  own.combine = combine;
  own.code = code;
  leave();
}

void* Block::variable(const void* key, size_t bytes, size_t alignment) {
  for (const Variable& known : variables_) {
    if (known.key == key) return shared_ + known.begin;
  }
  const size_t begin = (shared_used_ + alignment - 1) / alignment * alignment;
  if (begin + bytes - launch_->shared_bytes > kSharedBytesByDefault || begin + bytes > size_t(machine_.model.block_shared_bytes)) {
    fault("a block's variables are more than its shared memory");
  }
  variables_.push_back({key, begin});
  std::memset(shared_ + shared_used_, kUnwritten, begin + bytes - shared_used_);
  shared_used_ = begin + bytes;
  return shared_ + begin;
}

unsigned char* Block::dynamic_shared() { return shared_; }

void Block::copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t present, const void* code) {
  if (bytes > 16 || present > bytes) fault("a copy to shared memory is too long");
  if (to % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) fault("a copy to shared memory is not aligned");
  if (to + bytes > shared_used_) fault("a copy goes beyond shared memory");
  accessed(from, present, Access::kRead, code);
  // The copy may arrive now or as late as the wait for it, so it counts as a write at both times. Until the wait, the
  // destination is unwritten.
  accessed(shared_ + to, bytes, Access::kWrite, code);
  Copy copy{to, bytes, code, {}};
  std::memcpy(copy.values, from, present);
  std::memset(shared_ + to, kUnwritten, bytes);
  current_->open_group.push_back(copy);
}

void Block::end_group() {
  current_->groups.push_back(std::move(current_->open_group));
  current_->open_group.clear();
}

void Block::wait_for_groups(uint32_t but) {
  auto& groups = current_->groups;
  while (groups.size() > but) {
    for (const Copy& copy : groups.front()) {
      accessed(shared_ + copy.to, copy.bytes, Access::kWrite, copy.code);
      std::memcpy(shared_ + copy.to, copy.values, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

// Accesses before the grid-wide barrier were watched in the first run.
bool Block::is_watched(const Fiber& fiber) const {
  return machine_.watches_block && (!is_second_run_ || fiber.passed_grid_barrier);
}

void Block::accessed(const void* at, size_t bytes, Access access, const void* code) {
  if (!is_watched(*current_)) return;
  const auto* byte = static_cast<const unsigned char*>(at);
  const bool is_shared = byte >= shared_ && byte < shared_ + kMaxSharedBytes;
  if (access != Access::kRead && !is_shared && !current_->has_inputs) {
    fault("a kernel that may start early writes to memory before it waits for those before it");
  }
  races_->access(current_ - fibers_.data(), at, bytes, access, code);
}

void Block::lane_accessed(uint32_t lane, const void* at, size_t bytes, Access access) {
  const uint32_t thread = (current_ - fibers_.data()) / 32 * 32 + lane;
  if (is_watched(fibers_[thread])) races_->access(thread, at, bytes, access, fibers_[thread].code);
}

void Block::forget(const void* begin, size_t bytes) {
  if (races_) races_->forget(begin, bytes);
}

void Block::fault(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s", what);
  if (launch_ != nullptr && current_ != nullptr) {
    const Place& at = current_->place;
    std::fprintf(stderr, "\n  in %s, thread %u %u %u of block %u %u %u, of %u %u %u threads and %u %u %u blocks", launch_->name,
                 at.thread.x, at.thread.y, at.thread.z, at.block.x, at.block.y, at.block.z, at.block_dim.x, at.block_dim.y,
                 at.block_dim.z, at.grid_dim.x, at.grid_dim.y, at.grid_dim.z);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

}  // namespace emulated
