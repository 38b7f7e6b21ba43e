// cuDNN: one engine for every graph of operations, which needs no workspace; a fixed time for each.
#include <cudnn.h>

#include <cstdio>
#include <cstdlib>

#include "kernels.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "streams.hpp"
#include "values.hpp"

namespace {
struct Handle {
  cudaStream_t stream = nullptr;
};
constexpr double EXECUTION_NS = 100000;
constexpr size_t DESCRIPTOR_BYTES = 64;  // nobody reads what is in them

template <typename Descriptor>
cudnnStatus_t describe(Descriptor* descriptor) {
  *descriptor = (Descriptor)calloc(1, DESCRIPTOR_BYTES);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t none(size_t* bytes) {
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
}  // namespace

API size_t cudnnGetVersion() { return CUDNN_VERSION; }
API size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
API const char* cudnnGetErrorString(cudnnStatus_t) { return "a status of cuDNN"; }
API void cudnnGetLastErrorString(char* text, size_t length) { snprintf(text, length, "none"); }

API cudnnStatus_t cudnnGetProperty(libraryPropertyType property, int* value) {
  *value = property == MAJOR_VERSION ? CUDNN_MAJOR : property == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = (cudnnHandle_t) new Handle;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  ((Handle*)handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = ((Handle*)handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateCTCLossDescriptor(cudnnCTCLossDescriptor_t* it) { return describe(it); }
API cudnnStatus_t cudnnCreateSpatialTransformerDescriptor(cudnnSpatialTransformerDescriptor_t* it) { return describe(it); }

API cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* bytes) {
  *bytes = 1351680;  // of an A100
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* bytes) {
  return none(bytes);
}

API cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* bytes) {
  return none(bytes);
}

API cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnActivationDescriptor_t,
    const cudnnTensorDescriptor_t, size_t* bytes) {
  return none(bytes);
}

API cudnnStatus_t cudnnGetRNNTempSpaceSizes(
    cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t, cudnnRNNDataDescriptor_t, size_t* workspace, size_t* reserve) {
  *workspace = *reserve = MIB;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t, size_t* bytes) {
  *bytes = 4 * MIB;
  return CUDNN_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------- graphs of operations

API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* it) { return describe(it); }

API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  free(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendGetAttribute(
    cudnnBackendDescriptor_t const, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t requested,
    int64_t* found, void* values) {
  bool number = values && requested > 0;
  int64_t count = 0;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    count = name != CUDNN_ATTR_ENGINE_KNOB_INFO;  // an engine without knobs
  } else if (number && type == CUDNN_TYPE_INT32) {
    *(int32_t*)values = 0;
    count = 1;
  } else if (number && type == CUDNN_TYPE_INT64) {
    *(int64_t*)values = 0;
    count = 1;
  }
  if (found) *found = count;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  if (values::refuses("cudnnBackendExecute")) return CUDNN_STATUS_NOT_SUPPORTED;
  memory::forget();
  kernels::note("cudnnBackendExecute");
  streams::spend(((Handle*)handle)->stream, EXECUTION_NS);
  return CUDNN_STATUS_SUCCESS;
}
