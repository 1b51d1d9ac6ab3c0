// unpickle(): reads the pickle of a file that torch.save wrote (protocols 2 to 5), without ever
// running what it names.
//
// A pickle is a program for a stack machine, which may call anything that it can import. This one
// knows the few names that torch.save uses for plain data and tensors, gives each a fixed meaning,
// and refuses every other by its name: there is no way from a name in a file to code. What it allows
// is what torch.load allows with weights_only=True, less sparse and quantized tensors.
//
// For hostile input: memory is in proportion to the input (max_pickle_nodes()); nothing is
// taken on a length's word alone; depth is bounded; no tensor reaches beyond its storage (whether the storage
// has as many bytes as it says is for who reads the archive). Pure; any thread.
#pragma once

#include <string_view>

#include "base/result.h"
#include "worker_lib/serialization/core/pickle_value.h"

namespace ddprun {

// kCorrupt: the pickle is damaged; kUnsupported: it is whole, but of what is not allowed or not
// known here. Both say at which byte, and what.
Result<PickleTree> unpickle(std::string_view pickle);

}  // namespace ddprun
