// Shared parts of the tests that run the nccl backend on the double: calls, and a fixture for
// each version of NCCL.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ddprun/error.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/support/whole.h"
#include "tests/worker_lib/nccl/world.h"
#include "tests/worker_lib/support/tensor_list.h"

namespace ddprun {

inline constexpr CallOptions kCall{.timeout = std::chrono::seconds(60), .async = true};

inline Work sum_on(Backend& backend, const torch::Tensor& tensor, CallOptions call = kCall) {
  return backend.all_reduce(list_of_one(tensor), Reduction{ReduceOp::kSum}, call);
}

inline DistError failure_of(const Work& work) {
  return testing_support::dist_error_of([&] { work.wait(std::chrono::seconds(30)); });
}

class NcclOfAVersion : public testing::TestWithParam<NcclVersion> {
 protected:
  NcclDoubleWorld world_{GetParam()};
  NcclDouble& cuda_ = world_.cuda;
};

// The arguments of INSTANTIATE_TEST_SUITE_P: the versions (the sample: the oldest and the newest),
// and the names of the tests.
inline auto nccl_versions() {
  std::vector versions{NcclVersion::k2_28_9, NcclVersion::k2_31_2};
  if (testing_support::is_whole()) versions.push_back(NcclVersion::k2_30_7);
  return testing::ValuesIn(versions);
}
inline std::string name_of_version(const testing::TestParamInfo<NcclVersion>& one) {
  return to_name(one.param);
}

}  // namespace ddprun
