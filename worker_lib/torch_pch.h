// Precompiled for every unit that uses LibTorch: torch.h alone costs 11 s a unit.
#pragma once

#include <torch/torch.h>
