// A GPU that the CPU emulates: the functions of CUDA's driver that candlepower calls. Kernels are compiled by the
// stand-in for nvcc.
//
// Work is queued and run as late as possible, which reveals code that reads a result or overwrites an input too early.
// Memory is filled with 0xff bytes, and ends before a page that cannot be accessed. The library is built as
// libcuda.so.1, and is libcublas, libcurand and NCCL too, under other names. A process has one GPU, whose streams are
// all one.
//
// Environment variables:
//
// - CANDLEPOWER_EMULATED_EAGER=1 runs work at once.
// - CANDLEPOWER_EMULATED_GPUS=N reports N ordinals, all of them the same GPU.
// - CANDLEPOWER_EMULATED_GIB is the size of its memory, which is taken from the host.
// - CANDLEPOWER_EMULATED_MODEL is the name of one of `kModels`.
// - CANDLEPOWER_EMULATED_RACES=1 searches for races, in kernels that are compiled with -fsanitize=thread.
#include <cuda.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "block.h"
#include "gpu.h"

namespace emulated {

namespace {

constexpr size_t kPage = 4096;
// Alignment of CUDA's allocations.
constexpr size_t kAlignment = 256;
constexpr int kUnwritten = 0xff;

size_t setting(const char* name, size_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

const Model& named_model(const char* name) {
  if (name == nullptr) return kModels[0];
  for (const Model& model : kModels) {
    if (std::strcmp(model.name, name) == 0) return model;
  }
  std::fprintf(stderr, "the emulator has no GPU called %s\n", name);
  std::abort();
}

}  // namespace

Gpu& Gpu::the() {
  static Gpu* gpu = new Gpu;
  return *gpu;
}

Gpu::Gpu()
    : Machine(named_model(std::getenv("CANDLEPOWER_EMULATED_MODEL"))),
      block(*this),
      ordinals(setting("CANDLEPOWER_EMULATED_GPUS", 1)),
      total_bytes(setting("CANDLEPOWER_EMULATED_GIB", 2) << 30),
      is_eager(setting("CANDLEPOWER_EMULATED_EAGER", 0) != 0) {
  if (setting("CANDLEPOWER_EMULATED_RACES", 0) != 0) block.find_races();
}

// ---- The queue -------------------------------------------------------------------------------------

CUresult Gpu::submit(void* stream, Work work) {
  if (auto found = capturing.find(stream); found != capturing.end()) {
    found->second.work.push_back(std::move(work));
    return CUDA_SUCCESS;
  }
  queue.push_back(std::move(work));
  ++submitted;
  if (is_eager || queue.size() > kMaxQueued) finish(submitted);
  return CUDA_SUCCESS;
}

void Gpu::finish(uint64_t number) {
  while (finished < number) {
    const Work work = std::move(queue.front());
    queue.pop_front();
    ++finished;
    work();
  }
}

bool Gpu::is_capturing() const {
  const auto is_own = [](const auto& capture) { return capture.second.thread == std::this_thread::get_id(); };
  return std::any_of(capturing.begin(), capturing.end(), is_own);
}

// Runs all queued work. This is an error while the thread records a stream.
CUresult Gpu::wait() {
  if (is_capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  finish(submitted);
  return CUDA_SUCCESS;
}

// ---- Memory ----------------------------------------------------------------------------------------

// The end of the memory lies as close as alignment allows to a page that cannot be accessed.
void* Gpu::map(size_t bytes) {
  const size_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t whole = (used + kPage - 1) / kPage * kPage;
  void* first = mmap(nullptr, whole + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (first == MAP_FAILED) return nullptr;
  mprotect(static_cast<char*>(first) + whole, kPage, PROT_NONE);
  void* memory = static_cast<char*>(first) + whole - used;
  std::memset(memory, kUnwritten, used);
  mappings[memory] = {first, whole + kPage, bytes};
  known_ranges = {};
  return memory;
}

// Whether the bytes belong to one allocation, or to pages without allocations. The ranges of recent pages are cached,
// because watched kernels call this for each access.
bool Gpu::is_allocated(uintptr_t begin, size_t bytes) {
  Range& known = known_ranges[begin / kPage % known_ranges.size()];
  if (begin < known.begin || begin >= known.end) known = range_of(begin);
  if (begin >= known.end) return false;
  return begin + bytes <= known.end || is_allocated(known.end, begin + bytes - known.end);
}

// The allocation that contains a byte; or its page if no allocation is on that page. Empty for a byte beside an
// allocation on the same page.
Gpu::Range Gpu::range_of(uintptr_t at) const {
  const auto first_of = [](const Mapping& mapping) { return reinterpret_cast<uintptr_t>(mapping.first); };
  const auto after = mappings.upper_bound(reinterpret_cast<void*>(at));
  if (after != mappings.end() && at >= first_of(after->second)) return {};
  if (after != mappings.begin()) {
    const auto& [memory, mapping] = *std::prev(after);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    if (at < begin + mapping.bytes) return {begin, begin + mapping.bytes};
    if (at < first_of(mapping) + mapping.mapped) return {};
  }
  return {at / kPage * kPage, (at / kPage + 1) * kPage};
}

void Gpu::unmap(void* memory) {
  const auto found = mappings.find(memory);
  if (found == mappings.end()) block.fault("memory is freed that is not there");
  block.forget(found->second.first, found->second.mapped);
  munmap(found->second.first, found->second.mapped);
  mappings.erase(found);
  known_ranges = {};
}

CUresult Gpu::allocate(CUdeviceptr* memory, size_t bytes) {
  if (is_capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (used_bytes + bytes > total_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* mapped = map(bytes);
  if (mapped == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  used_bytes += bytes;
  most_used_bytes = std::max(most_used_bytes, used_bytes);
  *memory = reinterpret_cast<CUdeviceptr>(mapped);
  return CUDA_SUCCESS;
}

CUresult Gpu::release(void* stream, CUdeviceptr memory) {
  auto* pointer = reinterpret_cast<void*>(memory);
  const auto found = mappings.find(pointer);
  if (found == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  used_bytes -= found->second.bytes;
  return submit(stream, [this, pointer] { unmap(pointer); });
}

bool Gpu::is_pinned(const void* memory) const {
  const auto after = pinned.upper_bound(memory);
  if (after == pinned.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const char*>(memory) < static_cast<const char*>(begin) + bytes;
}

// Memory that is not pinned is read before the call returns, like in CUDA, because its owner may overwrite it then.
CUresult Gpu::upload(void* stream, void* to, const void* from, size_t bytes) {
  if (is_pinned(from)) return submit(stream, [=] { std::memcpy(to, from, bytes); });
  if (capturing.count(stream) != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto copy = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  return submit(stream, [=] { std::memcpy(to, copy->data(), bytes); });
}

CUresult Gpu::download(void* stream, void* to, const void* from, size_t bytes) {
  const CUresult submitted = submit(stream, [=] { std::memcpy(to, from, bytes); });
  return submitted == CUDA_SUCCESS && !is_pinned(to) ? wait() : submitted;
}

// ---- Calls from kernels ----------------------------------------------------------------------------

int Gpu::launch(void* stream, Launch launch) {
  const std::lock_guard guard(lock);
  const Extent& grid = launch.grid;
  const Extent& size = launch.block;
  const uint64_t threads = uint64_t(size.x) * size.y * size.z;
  if (threads == 0 || threads > 1024 || size.z > 64) return CUDA_ERROR_INVALID_VALUE;
  if (uint64_t(grid.x) * grid.y * grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto allowed = allowed_shared.find(launch.kernel);
  const size_t most = allowed == allowed_shared.end() ? kSharedBytesByDefault : allowed->second;
  if (launch.shared_bytes > std::max<size_t>(most, kSharedBytesByDefault)) return CUDA_ERROR_INVALID_VALUE;
  if (launch.cooperative) {
    const int by_shared = model.shared_bytes / static_cast<int>(launch.shared_bytes + kReservedSharedBytes);
    const int resident = std::min({by_shared, model.threads / static_cast<int>(threads), model.blocks});
    if (uint64_t(grid.x) * grid.y * grid.z > uint64_t(resident) * model.multiprocessors) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return submit(stream, [this, launch = std::move(launch)] { block.run(launch); });
}

int Gpu::copy(void* stream, void* to, const void* from, size_t bytes) {
  const std::lock_guard guard(lock);
  return upload(stream, to, from, bytes);
}

void Gpu::allow_shared(const void* kernel, size_t bytes) {
  const std::lock_guard guard(lock);
  allowed_shared[kernel] = bytes;
}

void Gpu::barrier() { block.barrier(); }
void Gpu::grid_barrier() { block.grid_barrier(); }
void Gpu::wait_for_inputs() { block.wait_for_inputs(); }
void Gpu::collective(uint32_t mask, void* operand, Combine combine) {
  block.collective(mask, operand, combine, __builtin_return_address(0));
}
void* Gpu::variable(const void* key, size_t bytes, size_t alignment) { return block.variable(key, bytes, alignment); }
unsigned char* Gpu::dynamic_shared() { return shared; }
void Gpu::copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t present) {
  block.copy_later(to, from, bytes, present, __builtin_return_address(0));
}
void Gpu::end_group() { block.end_group(); }
void Gpu::wait_for_groups(uint32_t but) { block.wait_for_groups(but); }
void Gpu::prefetched(const void* at) {
  const auto after = mappings.upper_bound(const_cast<void*>(at));
  const auto begin = after == mappings.begin() ? after : std::prev(after);
  if (begin == after || static_cast<const char*>(at) >= static_cast<const char*>(begin->first) + begin->second.bytes) {
    block.fault("a kernel requests bytes for the L2 cache that are not allocated");
  }
}
void Gpu::accessed(const void* at, size_t bytes, Access access, const void* code) {
  if (!is_allocated(reinterpret_cast<uintptr_t>(at), bytes)) block.fault("a kernel reaches beyond what was allocated");
  block.accessed(at, bytes, access, code);
}
void Gpu::lane_accessed(uint32_t lane, const void* at, size_t bytes, Access access) {
  block.lane_accessed(lane, at, bytes, access);
}
void Gpu::fault(const char* what) { block.fault(what); }

namespace {

// Ends the program with the kernel's name after an access to unmapped memory or to an unaligned vector. The compiler's
// check of alignment raises SIGILL.
void on_fault(int number, siginfo_t* info, void*) {
  if (Gpu::the().place == nullptr) {
    signal(number, SIG_DFL);
    return;
  }
  if (number == SIGILL) Gpu::the().fault("a kernel accessed a vector that is not aligned");
  std::fprintf(stderr, "emulated GPU: address %p is not there, or not aligned\n", info->si_addr);
  Gpu::the().fault("a kernel accessed memory that it must not");
}

void watch_faults() {
  static char stack[64 << 10];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGILL}) sigaction(number, &action, nullptr);
}

}  // namespace

}  // namespace emulated

using emulated::Gpu;
using Guard = std::lock_guard<std::mutex>;

extern "C" {

emulated::Machine* candlepower_emulated_machine() { return &Gpu::the(); }

// ---- Device and context ----------------------------------------------------------------------------

CUresult cuInit(unsigned int) {
  Gpu::the();
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = Gpu::the().ordinals, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < Gpu::the().ordinals ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, length, "emulated %s", Gpu::the().model.name);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) { return *bytes = Gpu::the().total_bytes, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = Gpu::the().model.major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = Gpu::the().model.minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = Gpu::the().model.multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = Gpu::the().model.block_shared_bytes; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

static CUcontext context() { return reinterpret_cast<CUcontext>(&Gpu::the()); }

CUresult cuDevicePrimaryCtxRetain(CUcontext* held, CUdevice) {
  // Installed here because Rust's own fault handler has been installed by now.
  static const bool watching = (emulated::watch_faults(), true);
  return *held = context(), watching ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* current) { return *current = context(), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().wait();
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  static char text[32];
  std::snprintf(text, sizeof text, "CUDA error %d", error);
  return *name = text, CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

// ---- candle's kernels ------------------------------------------------------------------------------

// Only candle's kernels that copy rows of a matrix are emulated, by name; the others are not found.
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = reinterpret_cast<CUmodule>(&Gpu::the());
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  static const std::map<std::string, size_t> kCopies{{"copy2d_u8", 1},  {"copy2d_f16", 2}, {"copy2d_bf16", 2},
                                                     {"copy2d_f32", 4}, {"copy2d_u32", 4}};
  const auto found = kCopies.find(name);
  if (found == kCopies.end()) {
    std::fprintf(stderr, "emulated GPU: candle's kernel %s is not emulated\n", name);
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = reinterpret_cast<CUfunction>(const_cast<size_t*>(&found->second));
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, unsigned int, CUstream stream, void** arguments, void**) {
  const Guard guard(Gpu::the().lock);
  const size_t bytes = *reinterpret_cast<size_t*>(function);
  const auto* from = *static_cast<const char**>(arguments[0]);
  auto* to = *static_cast<char**>(arguments[1]);
  const auto number = [&](int index) { return size_t(*static_cast<uint32_t*>(arguments[index])); };
  const size_t rows = number(2), columns = number(3), from_stride = number(4), to_stride = number(5);
  return Gpu::the().submit(stream, [=] {
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * to_stride * bytes, from + row * from_stride * bytes, columns * bytes);
    }
  });
}

// ---- Streams and events ----------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  *stream = reinterpret_cast<CUstream>(new char);
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  const Guard guard(Gpu::the().lock);
  const CUresult waited = Gpu::the().wait();
  delete reinterpret_cast<char*>(stream);
  return waited;
}
CUresult cuStreamSynchronize(CUstream) { return cuCtxSynchronize(); }
// There is only one queue, so streams need not wait for each other.
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int) { return CUDA_SUCCESS; }

CUresult cuEventCreate(CUevent* event, unsigned int) {
  *event = reinterpret_cast<CUevent>(new uint64_t(0));
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  if (Gpu::the().capturing.count(stream) != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *reinterpret_cast<uint64_t*>(event) = Gpu::the().submitted;
  return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent event) {
  const Guard guard(Gpu::the().lock);
  Gpu::the().finish(*reinterpret_cast<uint64_t*>(event));
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
  const Guard guard(Gpu::the().lock);
  Gpu& gpu = Gpu::the();
  const uint64_t number = *reinterpret_cast<uint64_t*>(event);
  if (gpu.finished >= number) return CUDA_SUCCESS;
  gpu.finish(gpu.finished + 1);
  return CUDA_ERROR_NOT_READY;
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) { return *milliseconds = 0.0f, CUDA_SUCCESS; }
CUresult cuEventDestroy(CUevent event) { return delete reinterpret_cast<uint64_t*>(event), CUDA_SUCCESS; }

// ---- Memory ----------------------------------------------------------------------------------------

CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().allocate(memory, bytes);
}
CUresult cuMemAllocAsync(CUdeviceptr* memory, size_t bytes, CUstream) { return cuMemAlloc(memory, bytes); }
CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().release(stream, memory);
}
CUresult cuMemFree(CUdeviceptr memory) { return cuMemFreeAsync(memory, nullptr); }
CUresult cuMemGetInfo(size_t* free, size_t* total) {
  const Guard guard(Gpu::the().lock);
  *total = Gpu::the().total_bytes;
  *free = *total - Gpu::the().used_bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int) {
  const Guard guard(Gpu::the().lock);
  Gpu& gpu = Gpu::the();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *memory = gpu.map(bytes);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  gpu.pinned[*memory] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* memory) {
  const Guard guard(Gpu::the().lock);
  const CUresult waited = Gpu::the().wait();
  Gpu::the().pinned.erase(memory);
  Gpu::the().unmap(memory);
  return waited;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().upload(stream, reinterpret_cast<void*>(to), from, bytes);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().download(stream, to, reinterpret_cast<const void*>(from), bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().submit(
      stream, [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().submit(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice) {
  *pool = reinterpret_cast<CUmemoryPool>(&Gpu::the());
  return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute attribute, void* value) {
  const Guard guard(Gpu::the().lock);
  const bool most = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  *static_cast<cuuint64_t*>(value) = most ? Gpu::the().most_used_bytes : Gpu::the().used_bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute attribute, void*) {
  const Guard guard(Gpu::the().lock);
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) Gpu::the().most_used_bytes = Gpu::the().used_bytes;
  return CUDA_SUCCESS;
}

// ---- Graphs ----------------------------------------------------------------------------------------

using Graph = std::vector<emulated::Work>;

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  const Guard guard(Gpu::the().lock);
  return Gpu::the().capturing.try_emplace(stream, emulated::Capture{std::this_thread::get_id(), {}}).second ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const Guard guard(Gpu::the().lock);
  auto recorded = Gpu::the().capturing.extract(stream);
  if (recorded.empty()) return CUDA_ERROR_ILLEGAL_STATE;
  *graph = reinterpret_cast<CUgraph>(new Graph(std::move(recorded.mapped().work)));
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const Guard guard(Gpu::the().lock);
  const bool is_capturing = Gpu::the().capturing.count(stream) != 0;
  *status = is_capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  *exec = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  const Guard guard(Gpu::the().lock);
  for (const emulated::Work& work : *reinterpret_cast<Graph*>(exec)) {
    if (const CUresult result = Gpu::the().submit(stream, work); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return delete reinterpret_cast<Graph*>(graph), CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec exec) { return delete reinterpret_cast<Graph*>(exec), CUDA_SUCCESS; }

}  // extern "C"
