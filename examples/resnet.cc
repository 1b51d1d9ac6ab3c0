#include "examples/resnet.h"

namespace examples {
namespace {

torch::nn::Conv2d conv3x3(const BlockOptions& options) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(options.from, options.to, 3)
                               .stride(options.stride)
                               .padding(1)
                               .bias(false));
}

torch::nn::Sequential stage(const BlockOptions& options, ddprun::ProcessGroup& statistics) {
  return torch::nn::Sequential{
      BasicBlock(options, statistics),
      BasicBlock(BlockOptions{.from = options.to, .to = options.to, .stride = 1}, statistics)};
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(const BlockOptions& options, ddprun::ProcessGroup& statistics)
    : conv1(register_module("conv1", conv3x3(options))),
      bn1(register_module("bn1", ddprun::SyncBatchNorm2d(options.to, statistics))),
      conv2(register_module("conv2", conv3x3({.from = options.to, .to = options.to, .stride = 1}))),
      bn2(register_module("bn2", ddprun::SyncBatchNorm2d(options.to, statistics))) {
  if (options.from == options.to && options.stride == 1) return;
  const auto conv1x1 = torch::nn::Conv2dOptions(options.from, options.to, 1);
  downsample = register_module(
      "downsample",
      torch::nn::Sequential{
          torch::nn::Conv2d(torch::nn::Conv2dOptions(conv1x1).stride(options.stride).bias(false)),
          ddprun::SyncBatchNorm2d(options.to, statistics)});
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& x) {
  torch::Tensor y = bn1(conv1(x)).relu_();
  y = bn2(conv2(y));
  y += downsample ? downsample->forward(x) : x;
  return y.relu_();
}

ResNet18Impl::ResNet18Impl(const ResNetOptions& options, ddprun::ProcessGroup& statistics)
    : conv1(register_module("conv1", conv3x3({options.image_channels, options.width, 1}))),
      bn1(register_module("bn1", ddprun::SyncBatchNorm2d(options.width, statistics))),
      layer1(register_module("layer1", stage({options.width, options.width, 1}, statistics))),
      layer2(register_module("layer2", stage({options.width, 2 * options.width, 2}, statistics))),
      layer3(
          register_module("layer3", stage({2 * options.width, 4 * options.width, 2}, statistics))),
      layer4(
          register_module("layer4", stage({4 * options.width, 8 * options.width, 2}, statistics))),
      fc(register_module("fc", torch::nn::Linear(8 * options.width, options.classes))) {
  for (const auto& module : modules(false)) {
    if (auto* conv = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  }
}

torch::Tensor ResNet18Impl::forward(const torch::Tensor& images) {
  torch::Tensor x = bn1(conv1(images)).relu_();
  x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
  return fc(x.mean({2, 3}));
}

}  // namespace examples
