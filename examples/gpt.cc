#include "examples/gpt.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace examples {
namespace {

torch::nn::LayerNorm norm_of(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

}  // namespace

AttentionImpl::AttentionImpl(std::int64_t width, std::int64_t heads)
    : heads(heads),
      qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
      out(register_module("out", torch::nn::Linear(width, width))) {}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x) {
  const std::int64_t count = x.size(0), length = x.size(1), width = x.size(2);
  // 3 x count x heads x length x channels of a head
  const torch::Tensor parts =
      qkv(x).view({count, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
  const torch::Tensor mixed = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return out(mixed.transpose(1, 2).reshape({count, length, width}));
}

LayerImpl::LayerImpl(const GptSizes& sizes)
    : norm1(register_module("norm1", norm_of(sizes.width))),
      attention(register_module("attention", Attention(sizes.width, sizes.heads))),
      norm2(register_module("norm2", norm_of(sizes.width))),
      up(register_module("up", torch::nn::Linear(sizes.width, 4 * sizes.width))),
      down(register_module("down", torch::nn::Linear(4 * sizes.width, sizes.width))) {}

torch::Tensor LayerImpl::forward(torch::Tensor x) {
  x = x + attention(norm1(x));
  return x + down(torch::gelu(up(norm2(x))));
}

GptImpl::GptImpl(const GptSizes& sizes)
    : block(sizes.block),
      token(register_module("token", torch::nn::Embedding(sizes.vocabulary, sizes.width))),
      position(register_module("position", torch::nn::Embedding(sizes.block, sizes.width))),
      layers(register_module("layers", torch::nn::ModuleList())),
      norm(register_module("norm", norm_of(sizes.width))) {
  for (std::int64_t i = 0; i < sizes.layers; ++i) layers->push_back(Layer(sizes));
  const torch::NoGradGuard no_grad;
  constexpr double kSpread = 0.02;
  // 2 x layers terms are added to the stream of a token. With this spread they keep its variance.
  const double added = kSpread / std::sqrt(2.0 * static_cast<double>(sizes.layers));
  for (auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    if (name.ends_with(".bias")) parameter.value().zero_();
    if (parameter.value().dim() < 2) continue;
    const bool adds = name.ends_with("attention.out.weight") || name.ends_with("down.weight");
    parameter.value().normal_(0, adds ? added : kSpread);
  }
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  torch::Tensor x = token(tokens) + position->weight.narrow(0, 0, tokens.size(1));
  for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
  return torch::linear(norm(x), token->weight);
}

torch::Tensor drawn_tokens(Gpt& net, std::int64_t first, std::int64_t count, std::int64_t seed) {
  const torch::NoGradGuard no_grad;
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  torch::Tensor tokens = torch::full({count + 1}, first, torch::kInt64);
  for (std::int64_t done = 1; done <= count; ++done) {
    const std::int64_t seen = std::min(done, net->block);
    const torch::Device device = net->parameters()[0].device();
    const torch::Tensor scores =
        net(tokens.narrow(0, done - seen, seen).unsqueeze(0).to(device)).cpu();
    tokens[done] = scores[0][seen - 1].softmax(0).multinomial(1, false, generator)[0];
  }
  return tokens.narrow(0, 1, count);
}

}  // namespace examples
