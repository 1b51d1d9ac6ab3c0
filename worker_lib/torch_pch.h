// Precompiled for the library and its tests: the part of LibTorch that the public headers include.
// The whole of torch/torch.h would cost each unit 3 s more.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/types.h>
