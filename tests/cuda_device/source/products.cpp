// cuBLAS: products take the time of their arithmetic. Every other function succeeds, and takes none.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstring>

#include <algorithm>

#include "kernels.hpp"
#include "machine.hpp"

namespace {
struct Handle {
  cudaStream_t stream = nullptr;
};
cudaStream_t stream_of(cublasHandle_t handle) { return ((Handle*)handle)->stream; }

cublasStatus_t status(bool done) { return done ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED; }

// What of a layout the time depends on; it lies within NVIDIA's opaque struct.
struct Layout {
  int type;
  uint64_t rows, columns;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "a caller may keep it on its stack");
Layout& in(cublasLtMatrixLayout_t layout) { return *(Layout*)layout; }
}  // namespace

API cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = (cublasHandle_t) new Handle;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  ((Handle*)handle)->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = stream_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
  *mode = CUBLAS_POINTER_MODE_HOST;
  return CUBLAS_STATUS_SUCCESS;
}

API const char* cublasGetStatusString(cublasStatus_t) { return "a status of cuBLAS"; }

API cublasStatus_t cublasSgemm_v2(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*, const float*, int,
    const float*, int, const float*, float*, int) {
  return status(kernels::multiplied("cublasSgemm", m, n, k, 1, CUDA_R_32F, stream_of(handle)));
}

API cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*, const float*, int,
    long long, const float*, int, long long, const float*, float*, int, long long, int batch) {
  return status(kernels::multiplied("cublasSgemmStridedBatched", m, n, k, batch, CUDA_R_32F, stream_of(handle)));
}

API cublasStatus_t cublasGemmEx(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void*, const void*,
    cudaDataType type, int, const void*, cudaDataType, int, const void*, void*, cudaDataType, int, cublasComputeType_t,
    cublasGemmAlgo_t) {
  return status(kernels::multiplied("cublasGemmEx", m, n, k, 1, type, stream_of(handle)));
}

API cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void*, const void*,
    cudaDataType type, int, long long, const void*, cudaDataType, int, long long, const void*, void*, cudaDataType, int,
    long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return status(kernels::multiplied("cublasGemmStridedBatchedEx", m, n, k, batch, type, stream_of(handle)));
}

API size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = (cublasLtHandle_t) new Handle;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t, cudaDataType_t) {
  *description = new cublasLtMatmulDescOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t) {
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  in(*layout) = {type, rows, columns};
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int requested, cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = std::min(requested, 1);  // one algorithm, without a workspace
  if (*found) memset((void*)results, 0, sizeof results[0]);
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t a, const void*,
    cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  uint64_t inner = in(a).rows == in(d).rows ? in(a).columns : in(a).rows;  // either may be transposed
  return status(kernels::multiplied("cublasLtMatmul", in(d).rows, in(d).columns, inner, 1, in(a).type, stream));
}
