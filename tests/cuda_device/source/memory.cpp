#include "memory.hpp"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <string>

#include "books.hpp"
#include "context.hpp"
#include "streams.hpp"
#include "values.hpp"

namespace {
struct Range {
  uint64_t bytes;
  int device;
};
// Never destroyed: torch frees memory until the very end of a process.
std::map<uintptr_t, Range>& on_devices() {
  static auto* ranges = new std::map<uintptr_t, Range>;
  return *ranges;
}
std::map<uintptr_t, Range>& locked() {
  static auto* ranges = new std::map<uintptr_t, Range>;
  return *ranges;
}

constexpr uint64_t PAGE = 2 * MIB;
uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

const std::pair<const uintptr_t, Range>* find(const std::map<uintptr_t, Range>& ranges, const void* address) {
  auto after = ranges.upper_bound((uintptr_t)address);
  if (after == ranges.begin()) return nullptr;
  --after;
  return (uintptr_t)address < after->first + after->second.bytes ? &*after : nullptr;
}
}  // namespace

void* memory::reserve(uint64_t bytes) {
  void* address = mmap(nullptr, whole_pages(bytes) + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  // Aligned as a device's pages are.
  uintptr_t begin = whole_pages((uintptr_t)address), end = begin + whole_pages(bytes);
  if (begin > (uintptr_t)address) munmap(address, begin - (uintptr_t)address);
  if (uintptr_t mapped = (uintptr_t)address + whole_pages(bytes) + PAGE; mapped > end) munmap((void*)end, mapped - end);
  return (void*)begin;
}

void memory::release(void* address, uint64_t bytes) { munmap(address, whole_pages(bytes)); }

// Memory that may be written counts for the limit of the process; what is not written yet takes none.
bool memory::open(uintptr_t address, uint64_t bytes) {
  return !values::on() || mprotect((void*)address, whole_pages(bytes), PROT_READ | PROT_WRITE) == 0;
}

void memory::close(uintptr_t address, uint64_t bytes) {
  if (!values::on()) return;
  madvise((void*)address, whole_pages(bytes), MADV_DONTNEED);
  mprotect((void*)address, whole_pages(bytes), PROT_NONE);
}

void memory::own(void* address, uint64_t bytes, int device) { on_devices()[(uintptr_t)address] = {bytes, device}; }

bool memory::disown(void* address, uint64_t& bytes, int& device) {
  auto found = on_devices().find((uintptr_t)address);
  if (found == on_devices().end()) return false;
  bytes = found->second.bytes;
  device = found->second.device;
  on_devices().erase(found);
  return true;
}

int memory::device_of(const void* address) {
  std::lock_guard<std::mutex> guard(context::lock);
  auto found = find(on_devices(), address);
  return found ? found->second.device : -1;
}

bool memory::range_of(const void* address, void** begin, uint64_t* bytes) {
  std::lock_guard<std::mutex> guard(context::lock);
  auto found = find(on_devices(), address);
  if (!found) return false;
  if (begin) *begin = (void*)found->first;
  if (bytes) *bytes = found->second.bytes;
  return true;
}

bool memory::page_locked(const void* address) {
  std::lock_guard<std::mutex> guard(context::lock);
  return find(locked(), address);
}

namespace {
constexpr uint64_t MOST_KNOWN = 64 * KIB;  // of a copy: numbers about tensors, no tensors
std::map<uintptr_t, std::string>& known() {
  static auto* contents = new std::map<uintptr_t, std::string>;
  return *contents;
}
std::atomic<bool> knows{false};

const char* known_at(const void* address, uint64_t bytes) {
  auto after = known().upper_bound((uintptr_t)address);
  if (after == known().begin()) return nullptr;
  --after;
  uint64_t offset = (uintptr_t)address - after->first;
  return offset + bytes <= after->second.size() ? after->second.data() + offset : nullptr;
}

// Replaces what was known of the range by these bytes, if any.
void learn(const void* address, uint64_t bytes, const char* contents) {
  uintptr_t begin = (uintptr_t)address;
  auto each = known().lower_bound(begin);
  if (each != known().begin()) --each;
  while (each != known().end() && each->first < begin + bytes)
    each = each->first + each->second.size() > begin ? known().erase(each) : std::next(each);
  if (contents) known()[begin] = std::string(contents, bytes);
  knows = !known().empty();
}
}  // namespace

void memory::forget() {
  if (!knows) return;
  std::lock_guard<std::mutex> guard(context::lock);
  known().clear();
  knows = false;
}

void memory::copied(void* to, const void* from, uint64_t bytes) {
  bool from_device = device_of(from) >= 0;
  // What a kernel computed on the way is not there, and may not be taken for a size.
  if (values::on() && !(values::inside() && from_device && device_of(to) < 0)) {
    memmove(to, from, bytes);
    return;
  }
  if (device_of(to) >= 0) {
    std::lock_guard<std::mutex> guard(context::lock);
    std::string contents;
    if (bytes <= MOST_KNOWN)
      if (auto* found = from_device ? known_at(from, bytes) : (const char*)from) contents.assign(found, bytes);
    learn(to, bytes, contents.empty() ? nullptr : contents.data());
    return;
  }
  if (!from_device) {
    memmove(to, from, bytes);
    return;
  }
  std::lock_guard<std::mutex> guard(context::lock);
  if (auto* found = known_at(from, bytes)) {
    memcpy(to, found, bytes);
  } else {
    // Whatever is asked of the device holds (all finite, all equal, any at all): a single byte is the answer.
    memset(to, bytes == 1, bytes);
  }
}

API cudaError_t cudaMalloc(void** address, size_t bytes) {
  RETURN_UNLESS_READY;
  *address = nullptr;
  if (!bytes) return cudaSuccess;
  std::lock_guard<std::mutex> guard(context::lock);
  context::open(context::device);
  const Gpu& gpu = context::gpu();
  if (!books::take(gpu.place, whole_pages(bytes), gpu.memory)) return context::failed(cudaErrorMemoryAllocation);
  *address = memory::reserve(bytes);
  if (*address && !memory::open((uintptr_t)*address, bytes)) {
    memory::release(*address, bytes);
    *address = nullptr;
  }
  if (!*address) {
    books::give(gpu.place, whole_pages(bytes));
    return context::failed(cudaErrorMemoryAllocation);
  }
  memory::own(*address, whole_pages(bytes), context::device);
  return cudaSuccess;
}

API cudaError_t cudaFree(void* address) {
  RETURN_UNLESS_READY;
  if (!address) {
    context::open(context::device);
    return cudaSuccess;
  }
  uint64_t bytes;
  int device = memory::device_of(address);
  if (device < 0) return context::failed(cudaErrorInvalidValue);
  streams::wait_for_device(device);  // as cudaFree does
  std::lock_guard<std::mutex> guard(context::lock);
  if (!memory::disown(address, bytes, device)) return context::failed(cudaErrorInvalidValue);
  books::give(context::gpu(device).place, bytes);
  memory::release(address, bytes);
  return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
API cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }

API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  RETURN_UNLESS_READY;
  context::open(context::device);
  *total = context::gpu().memory;
  uint64_t used = books::used(context::gpu().place);
  *free = used < *total ? *total - used : 0;
  return cudaSuccess;
}

// Host memory, page-locked only in name.
API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  RETURN_UNLESS_READY;
  if (posix_memalign(address, 4096, bytes ? bytes : 1)) return context::failed(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> guard(context::lock);
  locked()[(uintptr_t)*address] = {bytes, -1};
  return cudaSuccess;
}

API cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

API cudaError_t cudaFreeHost(void* address) {
  {
    std::lock_guard<std::mutex> guard(context::lock);
    locked().erase((uintptr_t)address);
  }
  free(address);
  return cudaSuccess;
}

API cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  RETURN_UNLESS_READY;
  std::lock_guard<std::mutex> guard(context::lock);
  locked()[(uintptr_t)address] = {bytes, -1};
  return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void* address) {
  RETURN_UNLESS_READY;
  std::lock_guard<std::mutex> guard(context::lock);
  locked().erase((uintptr_t)address);
  return cudaSuccess;
}

API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

// Managed memory, which bitsandbytes' paged optimizers ask for, is the host's.
API cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) { return cudaHostAlloc(address, bytes, 0); }

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  RETURN_UNLESS_READY;
  *attributes = {};
  attributes->hostPointer = attributes->devicePointer = nullptr;
  if (int device = memory::device_of(address); device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = (void*)address;
  } else if (memory::page_locked(address)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = context::device;
    attributes->hostPointer = attributes->devicePointer = (void*)address;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -1;
    attributes->hostPointer = (void*)address;
  }
  return cudaSuccess;
}

// Copies. GB/s, which is bytes per ns: within a device, by way of page-locked memory, by way of any other.
static cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool blocking) {
  RETURN_UNLESS_READY;
  if (!bytes) return cudaSuccess;
  bool to_device = memory::device_of(to) >= 0, from_device = memory::device_of(from) >= 0;
  bool direct = (to_device || memory::page_locked(to)) && (from_device || memory::page_locked(from));
  memory::copied(to, from, bytes);
  streams::spend(stream, 2000 + bytes / (to_device && from_device ? 1300.0 : direct ? 50.0 : 8.0));
  if (blocking || !direct) streams::wait(stream);
  return cudaSuccess;
}

API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr, true);
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}

API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}

API cudaError_t cudaMemcpy2DAsync(
    void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind,
    cudaStream_t stream) {
  RETURN_UNLESS_READY;
  for (size_t row = 0; row < height; row++)
    memory::copied((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  streams::spend(stream, 2000 + width * height / 50.0);
  return cudaSuccess;
}

API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }

API cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  RETURN_UNLESS_READY;
  if (values::on() || memory::device_of(address) < 0)
    memset(address, value, bytes);
  else
    memory::forget();
  streams::spend(stream, 2000 + bytes / 2500.0);
  return cudaSuccess;
}

API cudaError_t cudaMemset(void* address, int value, size_t bytes) { return cudaMemsetAsync(address, value, bytes, nullptr); }

API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  *address = (void*)symbol;
  return cudaSuccess;
}

// Memory of one process is never another's.
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return context::failed(cudaErrorNotSupported); }
API cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return context::failed(cudaErrorNotSupported); }
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return context::failed(cudaErrorNotSupported); }
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return context::failed(cudaErrorNotSupported); }

// The pools behind cudaMallocAsync are always empty.
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t)1;
  return cudaSuccess;
}

API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *(uint64_t*)value = 0;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  *(uint64_t*)value = 0;
  return cudaSuccess;
}
