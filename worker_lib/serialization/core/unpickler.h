// unpickle(): reads the pickle of a file that torch.save wrote (protocols 2 to 5), without ever
// running code that it names.
//
// A pickle is a program for a stack machine that may call anything it can import. This unpickler
// knows the few names that torch.save uses for plain data and tensors, and gives each a fixed
// meaning. It refuses every other name, so no name in a file leads to code. It allows what
// torch.load allows with weights_only=True, except sparse and quantized tensors.
//
// It is safe for hostile input. Memory is proportional to the input (max_pickle_nodes()), and a
// length in the input alone never causes an allocation. Depth is bounded. No tensor reaches
// beyond its storage (the reader of the archive must check that the storage has the given size).
// Pure; any thread.
#pragma once

#include <string_view>

#include "base/result.h"
#include "worker_lib/serialization/core/pickle_value.h"

namespace ddprun {

// Which names a pickle may have beyond those of torch.save. kDcp: those in the `.metadata` of
// PyTorch's distributed checkpoints. Objects of its classes become dicts of their attributes
// ("state", if an object has a state of its own), also as keys of dicts.
enum class PickleNames { kTorch, kDcp };

// Reads a pickle. kCorrupt: the pickle is damaged. kUnsupported: it is complete, but has contents
// that are not allowed or not known. Both messages give the byte position and the content.
Result<PickleTree> unpickle(std::string_view pickle, PickleNames names = PickleNames::kTorch);

}  // namespace ddprun
