// Fused attention, in all its kernels: softmax(q k' scale + bias) v, with dropout drawn again in the backward pass.
#include "values.hpp"

using c10::IValue;
using values::Draws;
using values::Values;

namespace {
const IValue AS_IT_IS;

struct Attention {
  at::Tensor query, key, value, bias;  // in 32 bits, with equal numbers of heads
  int64_t shared = 1;                  // heads of the query for one of keys
  double dropout, scale;
  at::Tensor weights, mask, logsumexp;

  Attention(
      const IValue& query, const IValue& key, const IValue& value, const IValue& bias, double dropout, bool causal,
      const IValue& scale, const Draws& draws)
      : dropout(dropout) {
    auto wide = [](const IValue& given) { return given.toTensor().to(at::kFloat); };
    this->query = wide(query);
    shared = this->query.size(1) / key.toTensor().size(1);
    this->key = wide(key).repeat_interleave(shared, 1);
    this->value = wide(value).repeat_interleave(shared, 1);
    this->scale = scale.isNone() ? 1 / std::sqrt((double)this->query.size(-1)) : scale.toDouble();
    auto scores = this->query.matmul(this->key.transpose(-1, -2)) * this->scale;
    if (!bias.isNone() && bias.toTensor().defined()) {
      this->bias = bias.toTensor();
      if (this->bias.scalar_type() == at::kBool)
        scores = scores.masked_fill(this->bias.logical_not(), -INFINITY);
      else
        scores = scores + this->bias.to(at::kFloat);
    }
    if (causal) {
      auto seen = at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).tril();
      scores = scores.masked_fill(seen.logical_not(), -INFINITY);
    }
    logsumexp = scores.logsumexp(-1);
    weights = at::_safe_softmax(scores, -1);
    if (dropout > 0) mask = at::empty_like(weights).bernoulli_(1 - dropout, draws.generator()) / (1 - dropout);
  }

  at::Tensor kept() const { return mask.defined() ? weights * mask : weights; }
  at::Tensor output() const { return kept().matmul(value); }

  at::Tensor over_shared(const at::Tensor& gradient) const {
    return shared == 1 ? gradient : gradient.unflatten(1, {-1, shared}).sum(2);
  }

  // For query, key, value and bias.
  Values backward(const IValue& of_output) const {
    auto gradient = of_output.toTensor().to(at::kFloat);
    auto of_value = kept().transpose(-1, -2).matmul(gradient);
    auto of_weights = gradient.matmul(value.transpose(-1, -2));
    if (mask.defined()) of_weights = of_weights * mask;
    auto of_scores = weights * (of_weights - (of_weights * weights).sum(-1, true));
    IValue of_bias = bias.defined() ? IValue(at::sum_to(of_scores, bias.sizes())) : AS_IT_IS;
    return {
        of_scores.matmul(key) * scale, over_shared(of_scores.transpose(-1, -2).matmul(query)) * scale, over_shared(of_value),
        of_bias};
  }
};

// The place of the generator, which the backward pass gets.
IValue number(uint64_t value) { return at::full({}, (int64_t)value, at::kLong); }
Draws kept_draws(const IValue& seed, const IValue& offset) {
  auto first = seed.toTensor().to(at::kLong).flatten();
  if (first.numel() == 2) return {(uint64_t)first[0].item<int64_t>(), (uint64_t)first[1].item<int64_t>()};
  if (!first.numel()) return {};
  return {(uint64_t)first[0].item<int64_t>(), (uint64_t)offset.toTensor().to(at::kLong).flatten()[0].item<int64_t>()};
}
}  // namespace

void values::add_attention(Equivalents& known) {
  known["_scaled_dot_product_flash_attention"] = [](const Values& v, const Draws& draws) {
    TORCH_CHECK_NOT_IMPLEMENTED(!v[5].toBool(), "the software CUDA device computes no debug mask of attention");
    Attention it(v[0], v[1], v[2], AS_IT_IS, v[3].toDouble(), v[4].toBool(), v[6], draws);
    auto place = at::tensor({(int64_t)draws.seed, (int64_t)draws.offset}, at::kLong);
    return Values{it.output(), it.logsumexp, AS_IT_IS, AS_IT_IS, AS_IT_IS, AS_IT_IS,
                  v[3].toDouble() > 0 ? IValue(place) : AS_IT_IS, AS_IT_IS, AS_IT_IS};
  };
  known["_scaled_dot_product_flash_attention_backward"] = [](const Values& v, const Draws&) {
    Attention it(v[1], v[2], v[3], AS_IT_IS, v[10].toDouble(), v[11].toBool(), v[14], kept_draws(v[12], v[13]));
    auto gradients = it.backward(v[0]);
    return Values{gradients[0], gradients[1], gradients[2]};
  };
  known["_scaled_dot_product_efficient_attention"] = [](const Values& v, const Draws& draws) {
    Attention it(v[0], v[1], v[2], v[3], v[5].toDouble(), v[6].toBool(), v[7], draws);
    return Values{it.output(), AS_IT_IS, number(draws.seed), number(draws.offset)};
  };
  known["_scaled_dot_product_efficient_attention_backward"] = [](const Values& v, const Draws&) {
    Attention it(v[1], v[2], v[3], v[4], v[9].toDouble(), v[11].toBool(), v[12], kept_draws(v[7], v[8]));
    auto gradients = it.backward(v[0]);
    auto asked = v[10].toBoolList();
    for (size_t i = 0; i < 4; i++)
      if (!asked.get(i)) gradients[i] = AS_IT_IS;
    return gradients;
  };
  known["_scaled_dot_product_cudnn_attention"] = [](const Values& v, const Draws& draws) {
    Attention it(v[0], v[1], v[2], v[3], v[5].toDouble(), v[6].toBool(), v[8], draws);
    return Values{it.output(), AS_IT_IS, AS_IT_IS, AS_IT_IS, AS_IT_IS, AS_IT_IS, number(draws.seed), number(draws.offset), AS_IT_IS};
  };
  known["_scaled_dot_product_cudnn_attention_backward"] = [](const Values& v, const Draws&) {
    Attention it(v[1], v[2], v[3], v[8], v[13].toDouble(), v[14].toBool(), v[15], kept_draws(v[6], v[7]));
    auto gradients = it.backward(v[0]);
    return Values{gradients[0], gradients[1], gradients[2]};
  };
}
