// The driver's interface, which Triton, Inductor and torch's virtual memory use beside the runtime.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "books.hpp"
#include "context.hpp"
#include "devices.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "streams.hpp"

// Errors have the same numbers on both sides.
static CUresult as_driver(cudaError_t error) { return (CUresult)error; }
static cudaError_t as_runtime(CUresult error) { return (cudaError_t)error; }

#define DRIVER_UNLESS_READY \
  if (cudaError_t unready = context::ready()) return as_driver(unready)

// ------------------------------------------------------------------------------------------------- entry points

static void* entry_point(const char* name) {
  static void* self = [] {
    Dl_info info;
    dladdr((void*)&as_driver, &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  for (const char* version : {"_v3", "_v2", ""})
    if (void* found = dlsym(self, (std::string(name) + version).c_str())) return found;
  return nullptr;
}

API CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  *function = entry_point(name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = entry_point(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPoint(
    const char* name, void** function, unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, result);
}

API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(as_runtime(error));
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = cudaGetErrorName(as_runtime(error));
  return CUDA_SUCCESS;
}

API CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  if (handle) *handle = (CUlogsCallbackHandle)1;
  return CUDA_SUCCESS;
}

API CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }

// ------------------------------------------------------------------------------------------ devices and contexts
// The context of a device is its number and one: a null pointer is no context.

static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(device + 1); }

API CUresult cuInit(unsigned) { return as_driver(context::ready()); }

API CUresult cuDriverGetVersion(int* version) {
  *version = machine::driver_version();
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int* count) { return as_driver(cudaGetDeviceCount(count)); }

API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  DRIVER_UNLESS_READY;
  if (ordinal < 0 || ordinal >= (int)machine::visible().size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char* text, int length, CUdevice device) {
  snprintf(text, length, "%s", context::gpu(device).name.c_str());
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  context::gpu(device).uuid(uuid->bytes);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  *bytes = context::gpu(device).memory;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  DRIVER_UNLESS_READY;
  *value = attribute_of(context::gpu(device), attribute);
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext* opened, CUdevice device) {
  DRIVER_UNLESS_READY;
  context::open(device);
  *opened = context_of(device);
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = context::is_open(device);
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext* current) {
  *current = context::is_open(context::device) ? context_of(context::device) : nullptr;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext chosen) {
  if (chosen) context::device = (int)(uintptr_t)chosen - 1;
  return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext chosen) { return cuCtxSetCurrent(chosen); }
API CUresult cuCtxPopCurrent_v2(CUcontext* current) { return cuCtxGetCurrent(current); }

API CUresult cuCtxGetDevice(CUdevice* device) {
  *device = context::device;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 8 * MIB;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return as_driver(cudaDeviceSynchronize()); }

// --------------------------------------------------------------------------------------------------------- kernels
// A module is loaded without a look at its code; a function is its name.

static CUresult load(CUmodule* module) {
  DRIVER_UNLESS_READY;
  *module = (CUmodule)1;
  return CUDA_SUCCESS;
}

API CUresult cuModuleLoad(CUmodule* module, const char*) { return load(module); }
API CUresult cuModuleLoadData(CUmodule* module, const void*) { return load(module); }
API CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) { return load(module); }
API CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) { return load(module); }
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

API CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = (CUfunction)strdup(name);
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = context::gpu().capability(); break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t shared) {
  return as_driver(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, nullptr, threads, shared));
}

API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 16;
  return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned, CUstream stream, void**, void**) {
  kernels::Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
  return as_driver(kernels::launched((const char*)function, shape, (cudaStream_t)stream));
}

API CUresult cuLaunchCooperativeKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, CUstream stream, void** arguments) {
  return cuLaunchKernel(
      function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, nullptr);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig* given, CUfunction function, void** arguments, void** extra) {
  return cuLaunchKernel(
      function, given->gridDimX, given->gridDimY, given->gridDimZ, given->blockDimX, given->blockDimY, given->blockDimZ,
      given->sharedMemBytes, given->hStream, arguments, extra);
}

API CUresult cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------- memory

API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return as_driver(cudaMemGetInfo(free, total)); }
API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) { return as_driver(cudaMalloc((void**)address, bytes)); }
API CUresult cuMemFree_v2(CUdeviceptr address) { return as_driver(cudaFree((void*)address)); }

API CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  return as_driver(cudaMemsetAsync((void*)address, (int)value, 4 * count, (cudaStream_t)stream));
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  uint64_t found;
  if (!memory::range_of((void*)address, (void**)begin, &found)) return CUDA_ERROR_NOT_FOUND;
  if (bytes) *bytes = found;
  return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  int device = memory::device_of((void*)address);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr*)value = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(int*)value = device >= 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)value = device >= 0 ? device : context::device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)value = context_of(device >= 0 ? device : context::device); return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Virtual memory, for segments that expand: what is created counts, addresses are reserved without it.
struct Physical {
  uint64_t bytes;
  int device;
};

API CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = 2 * MIB;
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *address = (CUdeviceptr)memory::reserve(bytes);
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  memory::release((void*)address, bytes);
  return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties, unsigned long long) {
  DRIVER_UNLESS_READY;
  if (bytes % (2 * MIB)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> guard(context::lock);
  int device = properties->location.id;
  context::open(device);
  if (!books::take(context::gpu(device).place, bytes, context::gpu(device).memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = (CUmemGenericAllocationHandle) new Physical{bytes, device};
  return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto* released = (Physical*)handle;
  std::lock_guard<std::mutex> guard(context::lock);
  books::give(context::gpu(released->device).place, released->bytes);
  delete released;
  return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  std::lock_guard<std::mutex> guard(context::lock);
  if (!memory::open(address, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  memory::own((void*)address, bytes, ((Physical*)handle)->device);
  return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  std::lock_guard<std::mutex> guard(context::lock);
  uint64_t mapped;
  int device;
  for (CUdeviceptr at = address; at < address + bytes; at += mapped) {
    if (!memory::disown((void*)at, mapped, device)) return CUDA_ERROR_INVALID_VALUE;
    memory::close(at, mapped);
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
