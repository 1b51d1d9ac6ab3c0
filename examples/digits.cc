#include "examples/digits.h"

#include <stdexcept>
#include <vector>

#include "examples/idx_reader.h"

namespace examples {

std::string shipped_digits() { return DDPRUN_DIGITS_DIR; }

Digits::Digits(const std::string& folder, const std::string& part)
    : images_(read_idx(folder + "/" + part + "-images-idx3-ubyte")
                  .unsqueeze(1)
                  .to(torch::kFloat32)
                  .div(255)),
      labels_(read_idx(folder + "/" + part + "-labels-idx1-ubyte").to(torch::kInt64)) {
  if (images_.size(0) != labels_.size(0))
    throw std::runtime_error(folder + ": " + part + " has " + std::to_string(images_.size(0)) +
                             " images and " + std::to_string(labels_.size(0)) + " labels");
}

torch::data::Example<> Digits::get_batch(torch::ArrayRef<std::size_t> indices) {
  const torch::Tensor rows =
      torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
  return {images_.index_select(0, rows), labels_.index_select(0, rows)};
}

torch::Tensor jittered(const torch::Tensor& images) {
  const std::int64_t count = images.size(0), height = images.size(2), width = images.size(3);
  const torch::Tensor windows =  // count x 1 x 3 x 3 x height x width
      torch::constant_pad_nd(images, {1, 1, 1, 1}).unfold(2, height, 1).unfold(3, width, 1);
  const torch::Tensor moved = torch::rand({count, 1}).lt(0.5);
  const torch::Tensor place =
      torch::where(moved, torch::randint(0, 3, {count, 2}), 1.0).to(torch::kInt64);
  using torch::indexing::Slice;
  return windows.index({torch::arange(count), Slice(), place.select(1, 0), place.select(1, 1)});
}

torch::nn::Sequential small_net(const Digits& digits) {
  const std::int64_t pixels = digits.images()[0].numel();
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(pixels, 32),
                               torch::nn::ReLU(), torch::nn::Linear(32, 10));
}

}  // namespace examples
