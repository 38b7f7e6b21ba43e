// The runtime's questions about devices.
#include <cstdio>
#include <cstring>

#include "context.hpp"
#include "devices.hpp"

static bool exists(int device) { return device >= 0 && device < (int)machine::visible().size(); }

// Figures of an A100 below capability 9.0, of an H100 from there on; numbers as in cudaDeviceAttr and CUdevice_attribute.
int attribute_of(const Gpu& gpu, int attribute) {
  bool hopper = gpu.major >= 9;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimX: return 1024;
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: return 65535;
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 * KIB;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (hopper ? 227 : gpu.capability() == 80 ? 163 : 99) * KIB;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (hopper ? 228 : gpu.capability() == 80 ? 164 : 100) * KIB;
    case cudaDevAttrReservedSharedMemoryPerBlock: return KIB;
    case cudaDevAttrTotalConstantMemory: return 64 * KIB;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return gpu.threads_per_multiprocessor();
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrL2CacheSize: return 50 * MIB;
    case cudaDevAttrMultiProcessorCount: return gpu.multiprocessors();
    case cudaDevAttrComputeCapabilityMajor: return gpu.major;
    case cudaDevAttrComputeCapabilityMinor: return gpu.minor;
    case cudaDevAttrPciBusId: return gpu.bus();
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrConcurrentKernels: return 1;
    case cudaDevAttrUnifiedAddressing: return 1;
    case cudaDevAttrCanMapHostMemory: return 1;
    case cudaDevAttrStreamPrioritiesSupported: return 1;
    case cudaDevAttrManagedMemory: return 1;
    case cudaDevAttrConcurrentManagedAccess: return 1;
    case cudaDevAttrCooperativeLaunch: return 1;
    case cudaDevAttrTextureAlignment: return 512;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
    case cudaDevAttrMemoryPoolsSupported: return 1;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return hopper;
    default: return 0;
  }
}

API cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine::driver_version();
  return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  RETURN_UNLESS_READY;
  *count = (int)machine::visible().size();
  return cudaSuccess;
}

API cudaError_t cudaGetDevice(int* device) {
  RETURN_UNLESS_READY;
  *device = context::device;
  return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device) {
  RETURN_UNLESS_READY;
  if (!exists(device)) return context::failed(cudaErrorInvalidDevice);
  context::device = device;
  context::open(device);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  RETURN_UNLESS_READY;
  if (!exists(device)) return context::failed(cudaErrorInvalidDevice);
  *value = attribute_of(context::gpu(device), attribute);
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  RETURN_UNLESS_READY;
  if (!exists(device)) return context::failed(cudaErrorInvalidDevice);
  const Gpu& gpu = context::gpu(device);
  auto value = [&](int attribute) { return attribute_of(gpu, attribute); };
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "%s", gpu.name.c_str());
  gpu.uuid(properties->uuid.bytes);
  properties->totalGlobalMem = gpu.memory;
  properties->major = gpu.major;
  properties->minor = gpu.minor;
  properties->multiProcessorCount = gpu.multiprocessors();
  properties->sharedMemPerBlock = value(cudaDevAttrMaxSharedMemoryPerBlock);
  properties->sharedMemPerBlockOptin = value(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  properties->sharedMemPerMultiprocessor = value(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  properties->reservedSharedMemPerBlock = value(cudaDevAttrReservedSharedMemoryPerBlock);
  properties->regsPerBlock = value(cudaDevAttrMaxRegistersPerBlock);
  properties->regsPerMultiprocessor = value(cudaDevAttrMaxRegistersPerMultiprocessor);
  properties->warpSize = value(cudaDevAttrWarpSize);
  properties->maxThreadsPerBlock = value(cudaDevAttrMaxThreadsPerBlock);
  properties->maxThreadsPerMultiProcessor = value(cudaDevAttrMaxThreadsPerMultiProcessor);
  properties->maxBlocksPerMultiProcessor = value(cudaDevAttrMaxBlocksPerMultiprocessor);
  for (int axis = 0; axis < 3; axis++) {
    properties->maxThreadsDim[axis] = value(cudaDevAttrMaxBlockDimX + axis);
    properties->maxGridSize[axis] = value(cudaDevAttrMaxGridDimX + axis);
  }
  properties->totalConstMem = value(cudaDevAttrTotalConstantMemory);
  properties->textureAlignment = value(cudaDevAttrTextureAlignment);
  properties->l2CacheSize = value(cudaDevAttrL2CacheSize);
  properties->memoryBusWidth = value(cudaDevAttrGlobalMemoryBusWidth);
  properties->memPitch = 2147483647;
  properties->pciBusID = gpu.bus();
  properties->unifiedAddressing = properties->canMapHostMemory = properties->concurrentKernels = 1;
  properties->managedMemory = properties->concurrentManagedAccess = properties->cooperativeLaunch = 1;
  properties->asyncEngineCount = value(cudaDevAttrAsyncEngineCount);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  RETURN_UNLESS_READY;
  if (!exists(device)) return context::failed(cudaErrorInvalidDevice);
  snprintf(text, length, "0000:%02X:00.0", context::gpu(device).bus());
  return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  RETURN_UNLESS_READY;
  *can = device != peer;
  return cudaSuccess;
}

API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  RETURN_UNLESS_READY;
  return cudaSuccess;
}
