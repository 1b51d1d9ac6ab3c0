// What ProcessGroup itself does: it checks, fills in and passes on. What comes out of collectives
// is tested over real backends (backend_conformance_test).
#include "ddprun/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/expect_dist_error.h"
#include "tests/worker_lib/recording_backend.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::dist_error_of;
using torch::Tensor;

// Rank 1 of 3.
class ProcessGroupTest : public testing::Test {
 protected:
  BackendRecord record_;
  ProcessGroup group_{std::make_unique<RecordingBackend>(record_, 1, 3), torch::kCPU, seconds(60)};
};

std::vector<Tensor> three(const torch::TensorOptions& options = torch::kFloat32) {
  return {torch::zeros({2}, options), torch::zeros({2}, options), torch::zeros({2}, options)};
}

TEST_F(ProcessGroupTest, PassesEveryCallOnWithItsOptionsFilledIn) {
  const Tensor tensor = torch::zeros({2});
  group_.all_reduce(tensor);
  group_.reduce(tensor, {.root = 2, .op = ReduceOp::kMax, .timeout = seconds(5), .async = true});
  group_.broadcast(tensor, {.root = 1});
  group_.all_gather(three(), tensor);
  group_.reduce_scatter(tensor, three(), {.op = ReduceOp::kAvg});
  group_.gather({}, tensor);
  group_.gather(three(), tensor, {.root = 1});
  group_.scatter(tensor, {}, {.root = 2});
  group_.scatter(tensor, three(), {.root = 1});
  group_.barrier({.timeout = milliseconds(1)});
  group_.send(tensor, 0, {.tag = 7});
  group_.recv(tensor, 2);
  group_.isend(tensor, 0, {.tag = 3});
  group_.irecv(tensor, kAnySource, {.timeout = seconds(5)});
  const auto works = group_.batch_isend_irecv(
      {{P2POp::Kind::kSend, tensor, 2, 1}, {P2POp::Kind::kRecv, tensor, kAnySource, 4}});
  EXPECT_EQ(works.size(), 2u);
  EXPECT_TRUE(group_.batch_isend_irecv({}).empty());
  EXPECT_THAT(record_.calls,
              ElementsAre("all_reduce sum in 60.0 s", "reduce max root 2 async in 5.0 s",
                          "broadcast root 1 in 60.0 s", "all_gather 3 in 60.0 s",
                          "reduce_scatter avg in 60.0 s", "gather 0 root 0 in 60.0 s",
                          "gather 3 root 1 in 60.0 s", "scatter 0 root 2 in 60.0 s",
                          "scatter 3 root 1 in 60.0 s", "barrier in 1 ms",
                          "send to 0 tag 7 in 60.0 s", "recv from 2 tag 0 in 60.0 s",
                          "send to 0 tag 3 async in 60.0 s", "recv from -1 tag 0 async in 5.0 s",
                          "batch: to 2 tag 1 from -1 tag 4 async in 60.0 s"));
}

TEST_F(ProcessGroupTest, ABlockingCallThrowsItsFailureAndAnAsynchronousOneKeepsIt) {
  record_.result = Error{.kind = ErrorKind::kPeerLost, .cause = "rank 2 died", .peer_rank = 2};
  const DistError failure = dist_error_of([&] { group_.barrier(); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kPeerLost);
  EXPECT_EQ(failure.peer_rank(), 2);
  const Work work = group_.barrier({.async = true});
  EXPECT_THROW(work.wait(), DistError);
}

TEST_F(ProcessGroupTest, AbortReachesTheBackendWithItsReason) {
  group_.abort("the test wants it");
  EXPECT_EQ(record_.aborted, "the test wants it");
}

TEST_F(ProcessGroupTest, ATimeoutBeyondAllTimeIsCutToOneThatCanBeAdded) {
  group_.barrier({.timeout = nanoseconds::max()});
  EXPECT_THAT(record_.calls, ElementsAre(HasSubstr("525600.0 min")));
}

// --- wrong arguments

struct WrongCall {
  std::string message;  // all of it, as the user sees it
  std::function<void(ProcessGroup&)> call;
};

void expect_refused(ProcessGroup& group, const BackendRecord& record,
                    const std::vector<WrongCall>& calls) {
  for (const WrongCall& wrong : calls) {
    SCOPED_TRACE(wrong.message);
    EXPECT_DIST_ERROR(wrong.call(group), DistError::Kind::kInvalidArgument,
                      testing::StrEq(wrong.message));
    EXPECT_THAT(record.calls, testing::IsEmpty()) << wrong.message;
  }
}

std::vector<Tensor> two_of_three() { return {torch::zeros({2}), torch::zeros({2})}; }

std::vector<Tensor> with_second(Tensor second) {
  return {torch::zeros({2}), std::move(second), torch::zeros({2})};
}

std::vector<Tensor> overlapping() {
  const Tensor whole = torch::zeros({5});
  return {whole.narrow(0, 0, 2), whole.narrow(0, 3, 2), whole.narrow(0, 1, 2)};
}

TEST_F(ProcessGroupTest, RefusesTensorsThatNoBackendCanTakeByName) {
  expect_refused(
      group_, record_,
      {WrongCall{"all_reduce: tensor must be a tensor, but is undefined",
                 [](auto& group) { group.all_reduce(Tensor()); }},
       WrongCall{"all_reduce: tensor must be dense, but its layout is Sparse",
                 [](auto& group) { group.all_reduce(torch::eye(2).to_sparse()); }},
       WrongCall{"broadcast: tensor must be on cpu, the group's device, but is on meta",
                 [](auto& group) { group.broadcast(torch::empty({2}, torch::kMeta)); }},
       WrongCall{
           "reduce: tensor is ComplexFloat; collectives know Bool, Byte, Char, Short, Int, Long, "
           "Half, BFloat16, Float and Double",
           [](auto& group) { group.reduce(torch::zeros({2}, torch::kComplexFloat)); }},
       WrongCall{"send: tensor must be contiguous, but has strides [1, 3] for shape [3, 2]; pass "
                 "tensor.contiguous(), and copy the result back where it is written",
                 [](auto& group) {
                   group.send(torch::zeros({2, 3}).t(), 0);
                 }},
       WrongCall{"recv: tensor must be contiguous, but has strides [0] for shape [4]; pass "
                 "tensor.contiguous(), and copy the result back where it is written",
                 [](auto& group) { group.recv(torch::zeros({1}).expand({4}), 0); }},
       WrongCall{"all_reduce: tensor is a lazily negated view; pass tensor.resolve_neg()",
                 [](auto& group) {
                   group.all_reduce(
                       torch::imag(torch::conj(torch::zeros({1}, torch::kComplexFloat))));
                 }}});
}

TEST_F(ProcessGroupTest, RefusesListsThatDoNotFitTheGroupByName) {
  expect_refused(
      group_, record_,
      {WrongCall{"all_gather: outputs must hold one tensor per rank, 3, but holds 2",
                 [](auto& group) { group.all_gather(two_of_three(), torch::zeros({2})); }},
       WrongCall{"all_gather: outputs[1] must be a tensor, but is undefined",
                 [](auto& group) { group.all_gather(with_second(Tensor()), torch::zeros({2})); }},
       WrongCall{
           "all_gather: outputs[1] must be like input, Float of shape [2], but is Float of shape "
           "[3]",
           [](auto& group) {
             group.all_gather(with_second(torch::zeros({3})), torch::zeros({2}));
           }},
       WrongCall{
           "reduce_scatter: inputs[0] must be like output, Double of shape [2], but is Float of "
           "shape [2]",
           [](auto& group) { group.reduce_scatter(torch::zeros({2}, torch::kFloat64), three()); }},
       WrongCall{"all_gather: outputs[0] and outputs[2] share memory, but each is written",
                 [](auto& group) { group.all_gather(overlapping(), torch::zeros({2})); }},
       WrongCall{
           "all_gather: input shares memory with outputs[0]; it may only be the same memory as "
           "outputs[rank]",
           [](auto& group) {
             const std::vector<Tensor> outputs = three();
             group.all_gather(outputs, outputs[0]);
           }},
       WrongCall{"reduce_scatter: output shares memory with inputs[1], which is only read",
                 [](auto& group) {
                   const std::vector<Tensor> inputs = three();
                   group.reduce_scatter(inputs[1], inputs);
                 }},
       WrongCall{"gather: outputs must hold one tensor per rank, 3, but holds 0",
                 [](auto& group) { group.gather({}, torch::zeros({2}), {.root = 1}); }},
       WrongCall{
           "gather: outputs must be empty on every rank but the root, 0, but holds 3 tensors on "
           "rank 1",
           [](auto& group) { group.gather(three(), torch::zeros({2})); }},
       WrongCall{
           "scatter: inputs must be empty on every rank but the root, 2, but holds 3 tensors on "
           "rank 1",
           [](auto& group) { group.scatter(torch::zeros({2}), three(), {.root = 2}); }}});
}

TEST_F(ProcessGroupTest, RefusesRanksTagsTimesAndOpsThatCannotBeMeant) {
  expect_refused(
      group_, record_,
      {WrongCall{"broadcast: root 3 is no rank of this group; its ranks are 0 .. 2",
                 [](auto& group) { group.broadcast(torch::zeros({2}), {.root = 3}); }},
       WrongCall{"reduce: root -1 is no rank of this group; its ranks are 0 .. 2",
                 [](auto& group) { group.reduce(torch::zeros({2}), {.root = -1}); }},
       WrongCall{"broadcast_object: root 3 is no rank of this group; its ranks are 0 .. 2",
                 [](auto& group) { group.broadcast_object(1, 3); }},
       WrongCall{"send: destination 4 is no rank of this group; its ranks are 0 .. 2",
                 [](auto& group) { group.send(torch::zeros({2}), 4); }},
       WrongCall{"recv: source 1 is this rank itself; copy the tensor instead",
                 [](auto& group) { group.recv(torch::zeros({2}), 1); }},
       WrongCall{"send: tag -1 must not be negative",
                 [](auto& group) { group.send(torch::zeros({2}), 0, {.tag = -1}); }},
       WrongCall{"barrier: timeout must be more than zero, but is 0 ns",
                 [](auto& group) { group.barrier({.timeout = nanoseconds(0)}); }},
       WrongCall{"all_reduce: op avg needs a floating-point tensor, but this one is Long",
                 [](auto& group) {
                   group.all_reduce(torch::zeros({2}, torch::kInt64), {.op = ReduceOp::kAvg});
                 }},
       WrongCall{"reduce_scatter: op bxor needs an integer or bool tensor, but this one is Float",
                 [](auto& group) {
                   group.reduce_scatter(torch::zeros({2}), three(), {.op = ReduceOp::kBitXor});
                 }},
       WrongCall{
           "all_gather_object: value is a discarded JSON value (the result of a failed parse)",
           [](auto& group) {
             group.all_gather_object(nlohmann::json::parse("{", nullptr, false));
           }}});
}

// --- what is right, though one might doubt it

TEST_F(ProcessGroupTest, TheOwnShareMayBeTheSameMemory) {
  const std::vector<Tensor> list = three();
  group_.all_gather(list, list[1]);
  group_.gather(list, list[1], {.root = 1});
  group_.scatter(list[1], list, {.root = 1});
  EXPECT_EQ(record_.calls.size(), 3U);
}

TEST_F(ProcessGroupTest, TensorsOfNoElementsAndOfNoDimensionsAreTaken) {
  group_.all_reduce(torch::zeros({0}));
  group_.all_reduce(torch::zeros({}));
  group_.all_gather({torch::zeros({0}), torch::zeros({0}), torch::zeros({0})}, torch::zeros({0}));
  EXPECT_EQ(record_.calls.size(), 3U);
}

TEST_F(ProcessGroupTest, AParameterIsTakenAsItIsAndKeepsRequiringGrad) {
  const Tensor parameter = torch::zeros({2}, torch::requires_grad());
  group_.broadcast(parameter);
  EXPECT_TRUE(parameter.requires_grad());
  EXPECT_TRUE(parameter.is_leaf());
}

TEST_F(ProcessGroupTest, ABackwardThatSavedAValueWhichACollectiveOverwroteFails) {
  const Tensor parameter = torch::ones({2}, torch::requires_grad());
  const Tensor loss = (parameter * parameter).sum();
  group_.all_reduce(parameter);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST_F(ProcessGroupTest, ACollectiveThatOnlyReadsATensorLeavesItsVersion) {
  const Tensor tensor = torch::ones({2});
  const auto version = tensor._version();
  group_.send(tensor, 0);
  group_.reduce(tensor, {.root = 0});
  group_.gather({}, tensor);
  group_.broadcast(tensor, {.root = 1});
  EXPECT_EQ(tensor._version(), version);
  group_.broadcast(tensor, {.root = 0});
  EXPECT_GT(tensor._version(), version);
}

TEST_F(ProcessGroupTest, InferenceTensorsAreTaken) {
  Tensor tensor;
  {
    const c10::InferenceMode guard;
    tensor = torch::ones({2});
  }
  EXPECT_NO_THROW(group_.all_reduce(tensor));
}

}  // namespace
}  // namespace ddprun
