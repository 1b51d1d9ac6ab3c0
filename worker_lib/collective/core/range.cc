#include "worker_lib/collective/core/range.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {

Range cut(Range whole, std::size_t parts, std::size_t index, std::size_t quantum) {
  DDPRUN_ASSERT(parts > 0 && index < parts && quantum > 0, "a part of a cut exists");
  const std::size_t quanta = (whole.size() + quantum - 1) / quantum;
  const std::size_t each = quanta / parts;
  const std::size_t longer = quanta % parts;  // the first ones get one more
  const auto boundary = [&](std::size_t i) {
    return std::min(whole.begin + (i * each + std::min(i, longer)) * quantum, whole.end);
  };
  return {boundary(index), boundary(index + 1)};
}

}  // namespace ddprun
