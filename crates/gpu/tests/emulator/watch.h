// Reports kernels' accesses to memory to the machine. With -fsanitize=thread the compiler calls these functions, which
// are ThreadSanitizer's, and races.h checks the accesses. Included by kernel.h.
#pragma once

#define EMULATED_UNWATCHED __attribute__((no_sanitize("thread")))

namespace emulated {

// Whether accesses are reported. Each access reads this byte of its own program, because reading it through a pointer
// to another library took a third of the time of unwatched runs.
__attribute__((visibility("hidden"))) inline bool watching = false;

EMULATED_UNWATCHED __attribute__((noinline)) inline void tell_machine(const void* at, size_t bytes, Access access, const void* code) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  if (begin < machine->stacks_begin || begin >= machine->stacks_end) machine->accessed(at, bytes, access, code);
}

EMULATED_UNWATCHED inline void tell(const void* at, size_t bytes, Access access, const void* code) {
  if (__builtin_expect(watching, false)) tell_machine(at, bytes, access, code);
}

}  // namespace emulated

extern "C" {

#define EMULATED_TOLD __attribute__((used)) EMULATED_UNWATCHED inline void
#define EMULATED_ACCESS(name, bytes, kind) \
  EMULATED_TOLD name(void* at) { emulated::tell(at, bytes, emulated::Access::kind, __builtin_return_address(0)); }
#define EMULATED_ACCESSES(bytes)                        \
  EMULATED_ACCESS(__tsan_read##bytes, bytes, kRead)     \
  EMULATED_ACCESS(__tsan_write##bytes, bytes, kWrite)
#define EMULATED_UNALIGNED(bytes)                                \
  EMULATED_ACCESS(__tsan_unaligned_read##bytes, bytes, kRead)    \
  EMULATED_ACCESS(__tsan_unaligned_write##bytes, bytes, kWrite)

EMULATED_ACCESSES(1)
EMULATED_ACCESSES(2)
EMULATED_ACCESSES(4)
EMULATED_ACCESSES(8)
EMULATED_ACCESSES(16)
EMULATED_UNALIGNED(2)
EMULATED_UNALIGNED(4)
EMULATED_UNALIGNED(8)
EMULATED_UNALIGNED(16)

EMULATED_TOLD __tsan_read_range(void* at, size_t bytes) {
  emulated::tell(at, bytes, emulated::Access::kRead, __builtin_return_address(0));
}
EMULATED_TOLD __tsan_write_range(void* at, size_t bytes) {
  emulated::tell(at, bytes, emulated::Access::kWrite, __builtin_return_address(0));
}
EMULATED_TOLD __tsan_init() {}
EMULATED_TOLD __tsan_vptr_update(void*, void*) {}

}  // extern "C"
