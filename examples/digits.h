// Handwritten digits as a dataset for LibTorch's data loaders, and a small net that learns them.
// One thread at a time.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <string>

namespace examples {

// Returns the folder of the digits that come with the source (examples/data/digits).
std::string shipped_digits();

// Digits: a dataset with all its images in memory. A batch is one gather. Copies share the tensors.
class Digits : public torch::data::datasets::BatchDataset<Digits, torch::data::Example<>> {
 public:
  // part: "train" or "t10k", as MNIST names its files. Throws std::runtime_error. It names the
  // file, as read_idx() does, or the folder if the numbers of images and labels differ.
  Digits(const std::string& folder, const std::string& part);

  // data: float32 of count x 1 x height x width, 0 to 1; target: int64.
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override { return labels_.size(0); }

  const torch::Tensor& images() const { return images_; }
  const torch::Tensor& labels() const { return labels_; }

 private:
  torch::Tensor images_, labels_;
};

// Returns the images (count x 1 x height x width), half of them moved by at most one pixel in each
// direction. LibTorch's default generator chooses them anew at each call.
torch::Tensor jittered(const torch::Tensor& images);

// Returns two linear layers over the pixels, with 32 features between them.
torch::nn::Sequential small_net(const Digits& digits);

// Returns the share of `digits` that `net`, a ModuleHolder, classifies correctly. Leaves `net` in
// training mode.
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
