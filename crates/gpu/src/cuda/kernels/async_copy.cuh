// Asynchronous copies from global to shared memory (`cp.async`).
#pragma once

#include "common.cuh"

namespace candlepower {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes to an address in shared memory, or writes zeros there if `exists` is false. The data is
// there once `wait_for_copies` has waited for the group that contains the copy.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, bool exists = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy_chunk(void* to, const void* from, bool exists = true) {
  copy_chunk(shared_address(to), from, exists);
}

// Starts a copy of 8 bytes to shared memory.
__device__ __forceinline__ void copy_pair(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// Closes a group of copies: those that the thread has started since the previous call. The group may be empty.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the newest `kPending` groups of the thread are still being copied.
template <int32_t kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace candlepower
