// Convolution, normalization, dropout and products, whose operators on CUDA are not those of a CPU.
#include "values.hpp"

using c10::IValue;
using values::Draws;
using values::Values;

namespace {
using Optional = std::optional<at::Tensor>;

Optional optional(const IValue& value) { return value.isNone() ? Optional() : Optional(value.toTensor()); }
std::vector<int64_t> sizes(const IValue& value) { return value.toIntVector(); }
const IValue AS_IT_IS;

at::Tensor convolved(
    const IValue& input, const IValue& weight, const Optional& bias, const IValue& stride, const IValue& padding,
    const IValue& dilation, int64_t groups) {
  return at::convolution(
      input.toTensor(), weight.toTensor(), bias, sizes(stride), sizes(padding), sizes(dilation), false,
      std::vector<int64_t>(input.toTensor().dim() - 2, 0), groups);
}

// Per channel, which is the second dimension.
at::Tensor over_channels(const at::Tensor& numbers, const at::Tensor& like) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[1] = numbers.numel();
  return numbers.to(at::kFloat).view(shape);
}
std::vector<int64_t> all_but_channels(const at::Tensor& tensor) {
  std::vector<int64_t> dimensions{0};
  for (int64_t each = 2; each < tensor.dim(); each++) dimensions.push_back(each);
  return dimensions;
}

void add_convolutions(values::Equivalents& known) {
  known["cudnn_convolution"] = known["cudnn_convolution.out"] = [](const Values& v, const Draws&) {
    return Values{convolved(v[0], v[1], {}, v[3], v[2], v[4], v[5].toInt())};
  };
  known["cudnn_convolution_transpose"] = [](const Values& v, const Draws&) {
    return Values{at::convolution(
        v[0].toTensor(), v[1].toTensor(), {}, sizes(v[4]), sizes(v[2]), sizes(v[5]), true, sizes(v[3]), v[6].toInt())};
  };
  known["cudnn_convolution_relu"] = [](const Values& v, const Draws&) {
    return Values{convolved(v[0], v[1], optional(v[2]), v[3], v[4], v[5], v[6].toInt()).relu()};
  };
  known["_conv_depthwise2d"] = known["conv_depthwise3d"] = [](const Values& v, const Draws&) {
    return Values{convolved(v[0], v[1], optional(v[3]), v[4], v[5], v[6], v[0].toTensor().size(1))};
  };
}

void add_batch_norms(values::Equivalents& known) {
  known["cudnn_batch_norm"] = [](const Values& v, const Draws&) {
    auto [out, mean, invstd] = at::native_batch_norm(
        v[0].toTensor(), optional(v[1]), optional(v[2]), optional(v[3]), optional(v[4]), v[5].toBool(), v[6].toDouble(),
        v[7].toDouble());
    return Values{out, mean, invstd, AS_IT_IS};
  };
  known["cudnn_batch_norm_backward"] = [](const Values& v, const Draws&) {
    auto [input, weight, bias] = at::native_batch_norm_backward(
        v[1].toTensor(), v[0].toTensor(), optional(v[2]), optional(v[3]), optional(v[4]), optional(v[5]), optional(v[6]), true,
        v[7].toDouble(), {true, true, true});
    return Values{input, weight, bias};
  };
  // Those of torch.nn.SyncBatchNorm.
  known["batch_norm_stats"] = [](const Values& v, const Draws&) {
    auto input = v[0].toTensor().to(at::kFloat);
    auto [variance, mean] = at::var_mean(input, all_but_channels(input), 0, false);
    return Values{mean, (variance + v[1].toDouble()).rsqrt()};
  };
  known["batch_norm_elemt"] = [](const Values& v, const Draws&) {
    auto input = v[0].toTensor();
    auto out = (input.to(at::kFloat) - over_channels(v[3].toTensor(), input)) * over_channels(v[4].toTensor(), input);
    if (auto weight = optional(v[1])) out = out * over_channels(*weight, input);
    if (auto bias = optional(v[2])) out = out + over_channels(*bias, input);
    return Values{out};
  };
  known["batch_norm_gather_stats_with_counts"] = [](const Values& v, const Draws&) {
    auto means = v[1].toTensor(), counts = v[7].toTensor().to(means.scalar_type()).view({-1, 1});
    auto squares = v[2].toTensor().pow(-2) - v[6].toDouble() + means.square();
    auto count = counts.sum();
    auto mean = (means * counts).sum(0) / count, variance = (squares * counts).sum(0) / count - mean.square();
    double momentum = v[5].toDouble();
    if (auto running = optional(v[3])) running->mul_(1 - momentum).add_(mean * momentum);
    if (auto running = optional(v[4])) running->mul_(1 - momentum).add_(variance * count / (count - 1) * momentum);
    return Values{mean, (variance + v[6].toDouble()).rsqrt()};
  };
  known["batch_norm_backward_reduce"] = [](const Values& v, const Draws&) {
    auto gradient = v[0].toTensor().to(at::kFloat), input = v[1].toTensor();
    auto dimensions = all_but_channels(input);
    auto sum = gradient.sum(dimensions);
    auto with_input = (gradient * (input.to(at::kFloat) - over_channels(v[2].toTensor(), input))).sum(dimensions);
    auto weight = with_input * v[3].toTensor();
    return Values{
        v[5].toBool() ? IValue(sum) : AS_IT_IS, v[5].toBool() ? IValue(with_input) : AS_IT_IS,
        v[6].toBool() ? IValue(weight) : AS_IT_IS, v[7].toBool() ? IValue(sum) : AS_IT_IS};
  };
  known["batch_norm_backward_elemt"] = [](const Values& v, const Draws&) {
    auto gradient = v[0].toTensor().to(at::kFloat), input = v[1].toTensor();
    auto count = v[7].toTensor().sum().to(at::kFloat);
    auto each = [&](const at::Tensor& numbers) { return over_channels(numbers, input); };
    auto invstd = each(v[3].toTensor());
    auto out = gradient - each(v[5].toTensor()) / count -
        (input.to(at::kFloat) - each(v[2].toTensor())) * invstd.square() * each(v[6].toTensor()) / count;
    out = out * invstd;
    if (auto weight = optional(v[4])) out = out * each(*weight);
    return Values{out};
  };
}

void add_products(values::Equivalents& known) {
  auto f = [](const IValue& value) { return value.toTensor().to(at::kFloat); };
  static auto wide = f;
  known["mm.dtype"] = [](const Values& v, const Draws&) { return Values{at::mm(wide(v[0]), wide(v[1]))}; };
  known["bmm.dtype"] = [](const Values& v, const Draws&) { return Values{at::bmm(wide(v[0]), wide(v[1]))}; };
  known["addmm.dtype"] = [](const Values& v, const Draws&) {
    return Values{at::addmm(wide(v[0]), wide(v[1]), wide(v[2]), v[4].toScalar(), v[5].toScalar())};
  };
  known["baddbmm.dtype"] = [](const Values& v, const Draws&) {
    return Values{at::baddbmm(wide(v[0]), wide(v[1]), wide(v[2]), v[4].toScalar(), v[5].toScalar())};
  };
}

void add_functions(values::Equivalents& known) {
  // What the forward pass keeps is a CPU's alone.
  known["log_sigmoid_forward"] = [](const Values& v, const Draws&) { return Values{at::log_sigmoid(v[0].toTensor()), AS_IT_IS}; };
  known["log_sigmoid_backward"] = [](const Values& v, const Draws&) {
    return Values{v[0].toTensor() * at::sigmoid(-v[1].toTensor())};
  };
  known["cudnn_grid_sampler"] = [](const Values& v, const Draws&) {
    return Values{at::grid_sampler_2d(v[0].toTensor(), v[1].toTensor(), 0, 0, true)};
  };
  known["cudnn_grid_sampler_backward"] = [](const Values& v, const Draws&) {
    auto [input, grid] = at::grid_sampler_2d_backward(v[2].toTensor(), v[0].toTensor(), v[1].toTensor(), 0, 0, true, {true, true});
    return Values{input, grid};
  };
}
}  // namespace

void values::add_layers(Equivalents& known) {
  add_convolutions(known);
  add_batch_norms(known);
  add_products(known);
  add_functions(known);
  known["_fused_dropout"] = [](const Values& v, const Draws& draws) {
    auto input = v[0].toTensor();
    double kept = v[1].toDouble();
    auto mask = at::empty(input.sizes(), input.options().dtype(at::kByte)).bernoulli_(kept, draws.generator());
    return Values{input * mask / kept, mask};
  };
  known["_masked_scale"] = [](const Values& v, const Draws&) {
    return Values{v[0].toTensor() * v[1].toTensor() * v[2].toDouble()};
  };
  known["_fused_rms_norm_backward"] = [](const Values& v, const Draws&) {
    auto input = v[1].toTensor().to(at::kFloat), gradient = v[0].toTensor().to(at::kFloat), rstd = v[3].toTensor().to(at::kFloat);
    auto normal = input * rstd, inner = gradient;
    if (auto weight = optional(v[4])) inner = gradient * weight->to(at::kFloat);
    std::vector<int64_t> last, first;
    int64_t normalized = (int64_t)v[2].toIntVector().size();
    for (int64_t each = 0; each < input.dim(); each++) (each < input.dim() - normalized ? first : last).push_back(each);
    auto out = rstd * (inner - normal * (inner * normal).mean(last, true));
    auto weight = first.empty() ? gradient * normal : (gradient * normal).sum(first);
    auto asked = v[5].toBoolList();
    return Values{asked.get(0) ? IValue(out) : AS_IT_IS, asked.get(1) ? IValue(weight) : AS_IT_IS};
  };
}
