// Handwritten digits as a dataset for LibTorch's data loaders, and a small net to learn them. One
// thread at a time.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <string>

namespace examples {

// The folder of the digits that come with the source (examples/data/digits).
std::string shipped_digits();

// All images in memory; a batch is one gather. Copies share the tensors.
class Digits : public torch::data::datasets::BatchDataset<Digits, torch::data::Example<>> {
 public:
  // part: "train" or "t10k", as MNIST calls its files. Throws std::runtime_error that names the
  // file as read_idx(), or the folder where images and labels differ in number.
  Digits(const std::string& folder, const std::string& part);

  // data: float32 of count x 1 x height x width, 0 to 1; target: int64.
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override { return labels_.size(0); }

  const torch::Tensor& images() const { return images_; }
  const torch::Tensor& labels() const { return labels_; }

 private:
  torch::Tensor images_, labels_;
};

// Half of the images (count x 1 x height x width) moved by at most a pixel each way, by LibTorch's default
// generator: new ones in every epoch.
torch::Tensor jittered(const torch::Tensor& images);

// Two linear layers over the pixels, 32 features between them.
torch::nn::Sequential small_net(const Digits& digits);

// The share of `digits` that `net`, a ModuleHolder, names right. It is in training mode afterwards.
template <class Net>
double accuracy(Net& net, const Digits& digits) {
  torch::NoGradGuard no_grad;
  net->eval();
  const torch::Device device = net->parameters()[0].device();
  const torch::Tensor guesses = net->forward(digits.images().to(device)).argmax(1).cpu();
  net->train();
  return guesses.eq(digits.labels()).to(torch::kFloat64).mean().template item<double>();
}

}  // namespace examples
