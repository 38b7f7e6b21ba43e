// How operators differ in what has to be done for their values.
#pragma once
#include <string>

#include "values.hpp"

namespace operators {
constexpr const char* READS = "aten::_local_scalar_dense";
bool computes(const c10::OperatorHandle& op);       // whether there is something to compute
bool on_a_cpu_alone(const std::string& name);       // not run on the device
bool in_32_bits(const std::string& name);           // 16 bits are added up in 32
bool too_long(const std::string& name, const values::Values& given);  // a product that is not waited for
}  // namespace operators
