// Sums and the like of what several ranks have, in NCCL's types of numbers.
#pragma once
#include <nccl.h>

#include <vector>

namespace reductions {
size_t bytes_of(ncclDataType_t type);
// of one rank's numbers, the factor of a sum that was made with ncclRedOpCreatePreMulSum
double factor(const void* scalar, ncclDataType_t type);
struct Operation {
  ncclRedOp_t kind;
  double factor = 1;
};
void reduce(void* to, const std::vector<const void*>& of_ranks, size_t count, ncclDataType_t type, Operation operation);
}  // namespace reductions
