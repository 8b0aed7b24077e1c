// Copies from memory to shared memory that a thread asks for and waits for later.
#pragma once

#include "common.cuh"

namespace candlepower {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to an address in shared memory, or writes zeros, some time before the copies that follow it have been waited for.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, bool exists = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy_chunk(void* to, const void* from, bool exists = true) {
  copy_chunk(shared_address(to), from, exists);
}

// What the thread has asked for since the last call is one more group, be it empty.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all of the thread's groups but the last `kPending`.
template <int32_t kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace candlepower
