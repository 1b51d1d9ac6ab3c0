// ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", 2015) in the usual variant
// for small images: the first convolution is 3 x 3 and keeps every pixel, and no pooling follows.
// Modules are named as in torchvision.
//
// Every batch norm is a ddprun::SyncBatchNorm2d. With a group of this rank alone it is a plain one,
// bit for bit.
#pragma once

#include <ddprun/sync_batch_norm.h>
#include <torch/torch.h>

#include <cstdint>

namespace examples {

struct ResNetOptions {
  std::int64_t image_channels = 1;
  // Channels of the first stage. Each of the three others has twice as many as the one before it.
  std::int64_t width = 64;
  std::int64_t classes = 10;
};

struct BlockOptions {
  std::int64_t from, to;  // channels
  std::int64_t stride;
};

// BasicBlock: two convolutions, and a shortcut: the identity, or a convolution of 1 x 1 if the
// shape changes.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(const BlockOptions& options, ddprun::ProcessGroup& statistics);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv1;
  ddprun::SyncBatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  ddprun::SyncBatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

class ResNet18Impl : public torch::nn::Module {
 public:
  // Draws the weights from LibTorch's default generator. statistics: the group of all batch norms;
  // it must outlive the net.
  ResNet18Impl(const ResNetOptions& options, ddprun::ProcessGroup& statistics);

  // images: float32, count x image_channels x height x width. Returns count x classes, before
  // softmax.
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d conv1;
  ddprun::SyncBatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet18);

}  // namespace examples
