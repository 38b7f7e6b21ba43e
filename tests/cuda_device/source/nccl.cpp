// NCCL: communicators know their size and rank; collectives succeed at once, and send nothing. Every rank is taken to have
// what this one has.
#include <nccl.h>

#include <cstring>

#include "machine.hpp"
#include "memory.hpp"

namespace {
struct Communicator {
  int size, rank;
};
Communicator& in(ncclComm_t communicator) { return *(Communicator*)communicator; }
size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
  }
}
ncclResult_t make(ncclComm_t* communicator, int size, int rank) {
  *communicator = (ncclComm_t) new Communicator{size, rank};
  return ncclSuccess;
}
}  // namespace

API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 1, sizeof *id);
  return ncclSuccess;
}

API const char* ncclGetErrorString(ncclResult_t) { return "an error of NCCL"; }
API const char* ncclGetLastError(ncclComm_t) { return ""; }

API ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId, int rank) {
  return make(communicator, size, rank);
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId, int rank, ncclConfig_t*) {
  return make(communicator, size, rank);
}

API ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int, ncclUniqueId*, ncclConfig_t*) {
  return make(communicator, size, rank);
}

API ncclResult_t ncclCommSplit(ncclComm_t parent, int, int, ncclComm_t* communicator, ncclConfig_t*) {
  return make(communicator, in(parent).size, in(parent).rank);
}

API ncclResult_t ncclCommCount(const ncclComm_t communicator, int* size) {
  *size = in(communicator).size;
  return ncclSuccess;
}

API ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = in(communicator).rank;
  return ncclSuccess;
}

API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator, cudaStream_t) {
  size_t bytes = count * bytes_of(type);
  for (int rank = 0; rank < in(communicator).size; rank++) memory::copied((char*)to + rank * bytes, from, bytes);
  return ncclSuccess;
}

API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int, ncclComm_t, cudaStream_t) {
  if (from != to) memory::copied(to, from, count * bytes_of(type));
  return ncclSuccess;
}

API ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  memory::forget();
  return ncclSuccess;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

API ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = (void*)1;
  return ncclSuccess;
}

API ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  return cudaMalloc(address, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}

API ncclResult_t ncclMemFree(void* address) { return cudaFree(address) ? ncclUnhandledCudaError : ncclSuccess; }

API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* operation, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  *operation = ncclSum;
  return ncclSuccess;
}
