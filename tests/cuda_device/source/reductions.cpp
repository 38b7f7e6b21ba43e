#include "reductions.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

namespace {
// Floating-point numbers of less than 32 bits are added up in 32, and rounded once.
template <typename Number>
struct Wide {
  using type = std::conditional_t<std::is_arithmetic_v<Number>, Number, float>;
};

template <typename Number>
void reduce(Number* to, const std::vector<const void*>& of_ranks, size_t count, reductions::Operation operation) {
  using Sum = typename Wide<Number>::type;
  for (size_t i = 0; i < count; i++) {
    Sum sum{};
    for (size_t rank = 0; rank < of_ranks.size(); rank++) {
      Sum next = (Sum)((const Number*)of_ranks[rank])[i];
      if (operation.factor != 1) next = (Sum)(next * operation.factor);
      if (!rank) sum = next;
      else if (operation.kind == ncclProd) sum = sum * next;
      else if (operation.kind == ncclMax) sum = std::max(sum, next);
      else if (operation.kind == ncclMin) sum = std::min(sum, next);
      else sum = sum + next;
    }
    to[i] = (Number)(operation.kind == ncclAvg ? sum / (Sum)of_ranks.size() : sum);
  }
}

template <typename Visitor>
void with_type(ncclDataType_t type, const Visitor& visit) {
  switch (type) {
    case ncclInt8: return visit(int8_t());
    case ncclUint8: return visit(uint8_t());
    case ncclInt32: return visit(int32_t());
    case ncclUint32: return visit(uint32_t());
    case ncclInt64: return visit(int64_t());
    case ncclUint64: return visit(uint64_t());
    case ncclFloat16: return visit(__half());
    case ncclFloat64: return visit(double());
    case ncclBfloat16: return visit(__nv_bfloat16());
    case ncclFloat8e4m3: return visit(__nv_fp8_e4m3());
    case ncclFloat8e5m2: return visit(__nv_fp8_e5m2());
    default: return visit(float());
  }
}
}  // namespace

size_t reductions::bytes_of(ncclDataType_t type) {
  size_t bytes;
  with_type(type, [&](auto number) { bytes = sizeof number; });
  return bytes;
}

double reductions::factor(const void* scalar, ncclDataType_t type) {
  double value;
  with_type(type, [&](auto number) {
    using Number = decltype(number);
    value = (double)(typename Wide<Number>::type)(*(const Number*)scalar);
  });
  return value;
}

void reductions::reduce(void* to, const std::vector<const void*>& of_ranks, size_t count, ncclDataType_t type, Operation operation) {
  with_type(type, [&](auto number) { ::reduce((decltype(number)*)to, of_ranks, count, operation); });
}
