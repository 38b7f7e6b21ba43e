// NVML: the management library, which sees all GPUs of the machine in the order of the PCI bus, and all processes.
#define NVML_NO_UNVERSIONED_FUNC_DEFS  // the names are those of the library, not those of the latest header
#include <nvml.h>

#include <cstdio>
#include <cstring>
#include <ctime>

#include "books.hpp"
#include "machine.hpp"

#define NVML extern "C" __attribute__((visibility("default"))) nvmlReturn_t
#define UNLESS_LACKING \
  if (machine::nvml_lacks(__func__)) return NVML_ERROR_NOT_SUPPORTED
// What all instances of a GPU in MIG mode take together is not for everybody to know.
#define UNLESS_IN_PARTS(handle) \
  if (of(handle).in_parts) return NVML_ERROR_NO_PERMISSION
// What the driver does not tell of an instance.
#define UNLESS_A_PART(handle) \
  if (of(handle).is_part()) return NVML_ERROR_NOT_SUPPORTED

static const Gpu& of(nvmlDevice_t handle) {
  size_t place = (uintptr_t)handle - 1, whole = machine::installed().size();
  return place < whole ? machine::installed()[place] : machine::instances().at(place - whole);
}
static nvmlDevice_t handle_of(const Gpu& gpu) { return (nvmlDevice_t)(uintptr_t)(gpu.place + 1); }

static nvmlReturn_t tell(char* text, unsigned length, const char* value) {
  return snprintf(text, length, "%s", value) < (int)length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML nvmlInit_v2() {
  UNLESS_LACKING;
  return NVML_SUCCESS;
}

NVML nvmlInitWithFlags(unsigned) { return NVML_SUCCESS; }
NVML nvmlShutdown() { return NVML_SUCCESS; }

API const char* nvmlErrorString(nvmlReturn_t error) {
  switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

NVML nvmlSystemGetDriverVersion(char* text, unsigned length) {
  UNLESS_LACKING;
  return tell(text, length, machine::driver_version() >= 13000 ? "580.65.06" : "550.54.15");
}

NVML nvmlSystemGetNVMLVersion(char* text, unsigned length) { return tell(text, length, "13.580.65.06"); }

NVML nvmlSystemGetCudaDriverVersion(int* version) {
  UNLESS_LACKING;
  *version = machine::driver_version();
  return NVML_SUCCESS;
}

NVML nvmlSystemGetCudaDriverVersion_v2(int* version) {
  UNLESS_LACKING;
  *version = machine::driver_version();
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetCount_v2(unsigned* count) {
  UNLESS_LACKING;
  *count = (unsigned)machine::installed().size();
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* handle) {
  if (index >= machine::installed().size()) return NVML_ERROR_INVALID_ARGUMENT;
  *handle = handle_of(machine::installed()[index]);
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* handle) {
  for (auto* gpus : {&machine::installed(), &machine::instances()})
    for (auto& gpu : *gpus)
      if (gpu.uuid() == uuid) {
        *handle = handle_of(gpu);
        return NVML_SUCCESS;
      }
  return NVML_ERROR_NOT_FOUND;
}

NVML nvmlDeviceGetHandleByPciBusId_v2(const char* text, nvmlDevice_t* handle) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2 || bus < 1 || bus > machine::installed().size()) return NVML_ERROR_NOT_FOUND;
  *handle = handle_of(machine::installed()[bus - 1]);
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
  *index = of(handle).place;
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetUUID(nvmlDevice_t handle, char* text, unsigned length) {
  UNLESS_LACKING;
  return tell(text, length, of(handle).uuid().c_str());
}

NVML nvmlDeviceGetName(nvmlDevice_t handle, char* text, unsigned length) {
  UNLESS_LACKING;
  return tell(text, length, of(handle).name.c_str());
}

NVML nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* info) {
  UNLESS_LACKING;
  UNLESS_IN_PARTS(handle);
  info->total = of(handle).memory;
  info->used = books::used(of(handle).place);
  info->free = info->total - info->used;
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* info) {
  UNLESS_LACKING;
  UNLESS_IN_PARTS(handle);
  info->total = of(handle).memory;
  info->reserved = 0;
  info->used = books::used(of(handle).place);
  info->free = info->total - info->used;
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_t* infos) {
  UNLESS_LACKING;
  UNLESS_IN_PARTS(handle);
  auto uses = books::uses(of(handle).place);
  unsigned room = *count;
  *count = (unsigned)uses.size();
  for (unsigned i = 0; i < uses.size() && i < room && infos; i++)
    infos[i] = {(unsigned)uses[i].pid, uses[i].bytes, 0xFFFFFFFF, 0xFFFFFFFF};
  return uses.size() > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_v2_t* infos) {
  static_assert(sizeof(nvmlProcessInfo_t) == sizeof(nvmlProcessInfo_v2_t), "the same struct by another name");
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, (nvmlProcessInfo_t*)infos);
}

// As torch asks when it is out of memory.
NVML nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_v1_t* infos) {
  UNLESS_LACKING;
  UNLESS_IN_PARTS(handle);
  auto uses = books::uses(of(handle).place);
  unsigned room = *count;
  *count = (unsigned)uses.size();
  for (unsigned i = 0; i < uses.size() && i < room && infos; i++) infos[i] = {(unsigned)uses[i].pid, uses[i].bytes};
  return uses.size() > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
  UNLESS_LACKING;
  UNLESS_A_PART(handle);
  *major = of(handle).major;
  *minor = of(handle).minor;
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned* current, unsigned* pending) {
  UNLESS_LACKING;
  UNLESS_A_PART(handle);
  *current = *pending = of(handle).in_parts;
  return of(handle).major < 8 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

constexpr unsigned MOST_PARTS = 7;

NVML nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned* count) {
  *count = of(handle).in_parts ? MOST_PARTS : 0;
  return NVML_SUCCESS;
}

// The first slot is empty, as when an instance was destroyed.
NVML nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t* found) {
  unsigned slot = 0;
  for (auto& part : machine::instances())
    if (part.whole == of(handle).place && ++slot == index) {
      *found = handle_of(part);
      return NVML_SUCCESS;
    }
  return NVML_ERROR_NOT_FOUND;
}

NVML nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t* found) {
  if (!of(handle).is_part()) return NVML_ERROR_INVALID_ARGUMENT;
  *found = handle_of(machine::installed()[of(handle).whole]);
  return NVML_SUCCESS;
}

// 100 W at rest, 500 W more while busy.
NVML nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long* millijoules) {
  UNLESS_LACKING;
  UNLESS_A_PART(handle);
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  *millijoules = 100ull * 1000 * time.tv_sec + time.tv_nsec / 10000 + books::busy_ns() / 2000;
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned* milliwatts) {
  UNLESS_LACKING;
  UNLESS_A_PART(handle);
  *milliwatts = 100000;
  return NVML_SUCCESS;
}

NVML nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t, unsigned, nvmlIntNvLinkDeviceType_t*) { return NVML_ERROR_NOT_SUPPORTED; }
NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t, unsigned, nvmlPciInfo_t*) { return NVML_ERROR_NOT_SUPPORTED; }

// What all versions of the structure have in one place. From Hopper on the driver knows that the GPU is in no fabric.
NVML nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfoV_t* info) {
  UNLESS_LACKING;
  UNLESS_A_PART(handle);
  if (of(handle).major < 9) return NVML_ERROR_NOT_SUPPORTED;
  info->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
  return NVML_SUCCESS;
}
