#include "context.hpp"

#include <unistd.h>

#include <atomic>

#include "books.hpp"
#include "values.hpp"

std::mutex context::lock;
thread_local int context::device = 0;

static constexpr uint64_t CONTEXT_BYTES = 520 * MIB;
static thread_local cudaError_t last = cudaSuccess;
static bool opened[MOST_GPUS];

// A kernel that reads where it must not ruins the context of its process. No kernel does that here: a test says so.
static std::atomic<bool> broken{false};
API void software_gpu_break() { broken = true; }

cudaError_t context::failed(cudaError_t error) {
  if (error) last = error;
  return error;
}

cudaError_t context::ready() {
  // A process that has used CUDA and forks has children to whom CUDA is closed.
  static std::atomic<int> owner{0};
  int me = getpid(), seen = 0;
  if (!owner.compare_exchange_strong(seen, me) && seen != me) return cudaErrorInitializationError;
  if (broken) return cudaErrorIllegalAddress;
  // Within one major version, any driver serves any runtime.
  if (machine::driver_version() / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  if (machine::visible().empty()) return cudaErrorNoDevice;
  values::install();
  return cudaSuccess;
}

const Gpu& context::gpu(int device) { return *machine::visible().at(device); }
const Gpu& context::gpu() { return gpu(device); }
bool context::is_open(int device) { return opened[device]; }

void context::open(int device) {
  if (opened[device]) return;
  opened[device] = true;
  books::take(gpu(device).place, CONTEXT_BYTES, UINT64_MAX);
}

API cudaError_t cudaGetLastError() {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError() { return last; }

API const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError: return "cudaErrorInitializationError";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    default: return "cudaErrorUnknown";
  }
}

API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNotSupported: return values::refused() ? values::refused() : "operation not supported";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "unknown error";
  }
}
