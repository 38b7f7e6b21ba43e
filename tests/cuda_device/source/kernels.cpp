#include "kernels.hpp"

#include <cstdio>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "context.hpp"
#include "library_types.h"
#include "memory.hpp"
#include "streams.hpp"
#include "values.hpp"

namespace {
constexpr int OLDEST_CAPABILITY = 75;  // that CUDA 13 compiles for
constexpr double LEAST_NS = 4000;
constexpr double BYTES_PER_THREAD = 32, BYTES_PER_NS = 2500;  // an element-wise kernel at the rate of the memory

std::map<std::string, uint64_t>& counts() {
  static auto* numbers = new std::map<std::string, uint64_t>;
  return *numbers;
}

// Names by the address of the function on the host, which nvcc's code registers when a library is loaded.
std::unordered_map<const void*, const char*>& names() {
  static auto* known = new std::unordered_map<const void*, const char*>(1 << 16);
  return *known;
}

const char* name_of(const void* function) {
  auto found = names().find(function);
  return found == names().end() ? "?" : found->second;
}

// At the end of a process, and of one that ends without its destructors.
__attribute__((destructor)) void write_trace() {
  if (!machine::trace_file() || counts().empty()) return;
  FILE* file = fopen(machine::trace_file(), "a");
  if (!file) return;
  for (auto& [name, count] : counts()) fprintf(file, "%d\t%llu\t%s\n", getpid(), (unsigned long long)count, name.c_str());
  fclose(file);
  counts().clear();
}
}  // namespace

API void _exit(int status) {
  write_trace();
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

void kernels::note(const char* name) {
  if (!machine::trace_file()) return;
  std::lock_guard<std::mutex> guard(context::lock);
  counts()["cuda:" + std::to_string(context::device) + "\t" + name]++;
}

cudaError_t kernels::launched(const char* name, const Shape& shape, cudaStream_t stream) {
  if (cudaError_t unready = context::ready()) return unready;
  uint64_t threads = (uint64_t)shape.block[0] * shape.block[1] * shape.block[2];
  uint64_t blocks = (uint64_t)shape.grid[0] * shape.grid[1] * shape.grid[2];
  if (!blocks || !threads || threads > 1024) return cudaErrorInvalidConfiguration;
  if (context::gpu().capability() < OLDEST_CAPABILITY) return cudaErrorNoKernelImageForDevice;
  if (streams::device_of(stream) != context::device) return cudaErrorInvalidResourceHandle;
  if (values::refuses(name)) return cudaErrorNotSupported;
  context::open(context::device);
  memory::forget();
  note(name);
  streams::spend(stream, LEAST_NS + blocks * threads * BYTES_PER_THREAD / BYTES_PER_NS);
  return cudaSuccess;
}

bool kernels::multiplied(const char* name, double m, double n, double k, double batch, int type, cudaStream_t stream) {
  bool half = type == CUDA_R_16F || type == CUDA_R_16BF, eighth = type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
  if (values::refuses(name)) return false;
  memory::forget();
  note(name);
  streams::spend(stream, LEAST_NS + 2 * m * n * k * batch / (eighth ? 1200e3 : half ? 600e3 : 45e3));
  return true;
}

// ------------------------------------------------------------------------- what nvcc's code on the host calls

API void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  names()[host] = name;
}
API char __cudaInitModule(void**) { return 1; }

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local Configuration configuration;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(cudaStream_t*)stream = configuration.stream;
  return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------------ the runtime

static cudaError_t launch(const void* function, dim3 grid, dim3 block, cudaStream_t stream) {
  kernels::Shape shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
  return context::failed(kernels::launched(name_of(function), shape, stream));
}

API cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return launch(function, grid, block, stream);
}

API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return launch(function, grid, block, stream);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* given, const void* function, void**) {
  return launch(function, given->gridDim, given->blockDim, given->stream);
}

API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return launch((const void*)kernel, grid, block, stream);
}

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  RETURN_UNLESS_READY;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = context::gpu().capability();
  attributes->maxDynamicSharedSizeBytes = 48 * KIB;
  return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  RETURN_UNLESS_READY;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t, unsigned) {
  RETURN_UNLESS_READY;
  *blocks = std::max(1, context::gpu().threads_per_multiprocessor() / std::max(1, threads));
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

API cudaError_t cudaLibraryLoadData(
    cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*, void**, unsigned) {
  *library = (cudaLibrary_t)1;
  return cudaSuccess;
}

API cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  char* kept = strdup(name);
  names()[kept] = kept;
  *kernel = (cudaKernel_t)kept;
  return cudaSuccess;
}
