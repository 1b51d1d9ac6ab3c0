// A small GPT: a transformer that predicts, at each place of a sequence of tokens, the next token
// (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019). Norms come before
// attention and MLP. Positions are learned. The scores are products with the embeddings of the
// tokens. examples/chargpt.py has the same net with the same names, so each program can read the
// other's weights.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace examples {

struct GptSizes {
  std::int64_t vocabulary = 0;
  std::int64_t block = 64;  // the longest sequence
  std::int64_t layers = 4;
  std::int64_t heads = 4;  // must divide `width`
  std::int64_t width = 128;
};

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(std::int64_t width, std::int64_t heads);
  torch::Tensor forward(const torch::Tensor& x);

  std::int64_t heads;
  torch::nn::Linear qkv, out;
};
TORCH_MODULE(Attention);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const GptSizes& sizes);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::LayerNorm norm1;
  Attention attention;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Layer);

struct GptImpl : torch::nn::Module {
  // Draws the weights from LibTorch's default generator.
  explicit GptImpl(const GptSizes& sizes);

  // tokens: int64, count x length, with length at most sizes.block. Returns float32 scores
  // (logits), count x length x vocabulary. The scores of a place depend on the tokens up to it.
  torch::Tensor forward(const torch::Tensor& tokens);

  std::int64_t block;
  torch::nn::Embedding token, position;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

// Returns `count` tokens (int64), drawn one after another by the scores. They follow the token
// `first`, which is not returned.
torch::Tensor drawn_tokens(Gpt& net, std::int64_t first, std::int64_t count, std::int64_t seed);

}  // namespace examples
