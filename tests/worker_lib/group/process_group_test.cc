// Tests what ProcessGroup itself does: it checks arguments, fills in options and passes calls
// on. backend_conformance_test tests the results of collectives, over real backends.
#include "ddprun/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "ddprun/objects.h"
#include "tests/support/expect_dist_error.h"
#include "tests/worker_lib/support/recording_backend.h"
#include "worker_lib/flight/worker_reporter.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::dist_error_of;
using torch::Tensor;

// ProcessGroupTest: the group of rank 1 of 3.
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
  group_.monitored_barrier();
  group_.send(tensor, 0, {.tag = 7});
  group_.recv(tensor, 2);
  group_.isend(tensor, 0, {.tag = 3});
  group_.irecv(tensor, kAnySource, {.timeout = seconds(5)});
  const auto works = group_.batch_isend_irecv(
      {{P2POp::Kind::kSend, tensor, 2, 1}, {P2POp::Kind::kRecv, tensor, kAnySource, 4}});
  EXPECT_EQ(works.size(), 2u);
  EXPECT_TRUE(group_.batch_isend_irecv({}).empty());
  EXPECT_THAT(record_.calls,
              ElementsAre("all_reduce [2] sum in 60.0 s", "reduce max root 2 async in 5.0 s",
                          "broadcast [2] root 1 in 60.0 s", "all_gather [2 2 2] of [2] in 60.0 s",
                          "reduce_scatter [2] of [2 2 2] avg in 60.0 s",
                          "gather [] root 0 in 60.0 s", "gather [2 2 2] root 1 in 60.0 s",
                          "scatter [] root 2 in 60.0 s", "scatter [2 2 2] root 1 in 60.0 s",
                          "barrier in 1 ms", "monitored_barrier in 60.0 s",
                          "send to 0 tag 7 in 60.0 s", "recv from 2 tag 0 in 60.0 s",
                          "send to 0 tag 3 async in 60.0 s", "recv from -1 tag 0 async in 5.0 s",
                          "batch: to 2 tag 1 from -1 tag 4 async in 60.0 s"));
}

TEST_F(ProcessGroupTest, PassesListsAndPartsOn) {
  const Tensor two = torch::zeros({2});
  const Tensor four = torch::zeros({2, 2});
  group_.all_reduce_coalesced({two, four}, {.op = ReduceOp::kPremulSum, .premul_factor = 0.5});
  group_.broadcast_coalesced({two, four.to(torch::kInt8)}, {.root = 2});
  group_.all_gather_coalesced(
      {{two.clone(), four.clone()}, {two, four}, {two.clone(), four.clone()}}, {two, four});
  group_.all_gather_into_tensor(torch::zeros({3, 2}), two);
  group_.all_gather_into_tensor(torch::zeros({6}), two);
  group_.all_gather_into_tensor(torch::zeros({3}), torch::zeros({}));
  group_.all_gather_into_tensor_coalesced({torch::zeros({6}), torch::zeros({12})}, {two, four});
  group_.reduce_scatter_tensor(two, torch::zeros({3, 2}));
  group_.reduce_scatter_tensor_coalesced({two, four}, {torch::zeros({6}), torch::zeros({3, 4})});
  group_.all_to_all({torch::zeros({1}), two, four},
                    {torch::zeros({5}), torch::zeros({2}), torch::zeros({0})});
  group_.all_to_all_single(torch::zeros({3, 2}), torch::zeros({3, 2}));
  group_.all_to_all_single(torch::zeros({4, 2}), torch::zeros({5, 2}),
                           {.output_splits = {0, 1, 3}, .input_splits = {4, 1, 0}});
  EXPECT_THAT(
      record_.calls,
      ElementsAre(
          "all_reduce [2 4] premul_sum by 0.500000 in 60.0 s", "broadcast [2 4] root 2 in 60.0 s",
          "all_gather [2 4 2 4 2 4] of [2 4] in 60.0 s", "all_gather [2 2 2] of [2] in 60.0 s",
          "all_gather [2 2 2] of [2] in 60.0 s", "all_gather [1 1 1] of [1] in 60.0 s",
          "all_gather [2 4 2 4 2 4] of [2 4] in 60.0 s",
          "reduce_scatter [2] of [2 2 2] sum in 60.0 s",
          "reduce_scatter [2 4] of [2 4 2 4 2 4] sum in 60.0 s",
          "all_to_all [1 2 4] of [5 2 0] in 60.0 s", "all_to_all [2 2 2] of [2 2 2] in 60.0 s",
          "all_to_all [0 2 6] of [8 2 0] in 60.0 s"));
}

TEST_F(ProcessGroupTest, ABlockingCallThrowsItsFailureAndAnAsynchronousOneKeepsIt) {
  record_.result = Error{.kind = ErrorKind::kPeerLost, .cause = "rank 2 died", .peer_rank = 2};
  const DistError failure = dist_error_of([&] { group_.barrier(); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kPeerLost);
  EXPECT_EQ(failure.peer_rank(), 2);
  const Work work = group_.barrier({.async = true});
  EXPECT_THROW(work.wait(), DistError);
}

TEST_F(ProcessGroupTest, AFutureHoldsWhatTheCallWritesOnThisRank) {
  const auto still_running = std::make_shared<detail::HostWork>();
  record_.works = {Work(still_running)};
  const std::vector<Tensor> outputs = three();
  const Work work = group_.all_gather(outputs, torch::ones({2}), {.async = true});
  const auto future = work.future();
  EXPECT_FALSE(future->completed());
  still_running->complete({});
  ASSERT_TRUE(future->completed());
  const std::vector<Tensor> value = future->value().toTensorVector();
  ASSERT_EQ(value.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(value[i].is_same(outputs[i]));

  // The root of a broadcast writes nothing.
  const auto on_root = std::make_shared<detail::HostWork>();
  record_.works = {Work(on_root)};
  const auto nothing = group_.broadcast(outputs[0], {.root = 1, .async = true}).future();
  on_root->complete({});
  EXPECT_TRUE(nothing->value().toTensorVector().empty());
  EXPECT_TRUE(group_.all_reduce(outputs[0]).future()->completed());
}

// --- DDPRUN_VERIFY

class VerifyTest : public testing::Test {
 protected:
  ProcessGroup& group(Verify verify) {
    group_ =
        std::make_unique<ProcessGroup>(std::make_unique<RecordingBackend>(record_, 1, 3),
                                       torch::kCPU, seconds(60), nullptr, GroupIdentity(), verify);
    return *group_;
  }
  // Gives all ranks the values of this rank, except rank `other`.
  void let_differ(std::size_t other) {
    record_.gather = [other](TensorList outputs, TensorList inputs) {
      for (std::size_t r = 0; r < outputs.size(); ++r) {
        torch::Tensor(outputs[r]).copy_(inputs[0]);
        if (r == other) torch::Tensor(outputs[r]).add_(1);
      }
    };
  }

  BackendRecord record_;
  std::unique_ptr<ProcessGroup> group_;
};

TEST_F(VerifyTest, AResultThatDiffersIsKnownByItsCallAndItsRank) {
  ProcessGroup& group = this->group({.results = true});
  const Tensor tensor = torch::ones({5});
  let_differ(3);  // no rank has this number
  group.all_reduce(tensor);
  group.broadcast(tensor);
  EXPECT_THAT(record_.calls,
              ElementsAre("all_reduce [5] sum in 60.0 s", "all_gather [1 1 1] of [1] in 60.0 s",
                          "broadcast [5] root 0 in 60.0 s", "all_gather [1 1 1] of [1] in 60.0 s"));
  let_differ(2);
  const DistError failure = dist_error_of([&] { group.all_reduce(tensor); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kCorrupt);
  EXPECT_STREQ(failure.what(),
               "all_reduce (collective 3): rank 2 has another result than ranks 0 and 1");
  const DistError gathered = dist_error_of([&] { group.all_gather(three(), torch::ones({2})); });
  EXPECT_THAT(gathered.what(), HasSubstr("all_gather (collective 4): rank 2 has another result"));
}

TEST_F(VerifyTest, AFutureHoldsWhatTheCallHasWritten) {
  ProcessGroup& group = this->group({.results = true});
  let_differ(3);
  const Tensor tensor = torch::ones({5});
  const Work work = group.all_reduce(tensor, {.async = true});
  EXPECT_TRUE(work.is_completed());
  const auto value = work.future()->value().toTensorVector();
  ASSERT_EQ(value.size(), 1u);
  EXPECT_TRUE(value[0].is_same(tensor));
}

TEST_F(VerifyTest, ResultsThatAreEachRanksOwnAreNotCompared) {
  ProcessGroup& group = this->group({.results = true});
  let_differ(0);
  group.reduce(torch::ones({2}));
  group.reduce_scatter(torch::ones({2}), three());
  group.gather({}, torch::ones({2}));
  group.scatter(torch::ones({2}), {});
  group.barrier();
  group.send(torch::ones({1}), 0);
}

TEST_F(VerifyTest, ANanOfThisRankIsNamedBeforeAnythingIsSent) {
  ProcessGroup& group = this->group({.nan = true});
  Tensor tensor = torch::ones({2, 3});
  let_differ(3);
  group.all_reduce_coalesced({torch::ones({1}), tensor});
  tensor[1][1] = std::numeric_limits<float>::quiet_NaN();
  tensor[1][2] = std::numeric_limits<float>::quiet_NaN();
  record_.calls.clear();
  const DistError failure = dist_error_of([&] {
    group.all_reduce_coalesced({torch::ones({1}), tensor});
  });
  EXPECT_EQ(failure.kind(), DistError::Kind::kInvalidArgument);
  EXPECT_STREQ(failure.what(),
               "all_reduce_coalesced (collective 2): what this rank, 1, gives holds 2 NaN, the "
               "first in tensor 1 at element 4; nothing was sent");
  EXPECT_EQ(failure.peer_rank(), 1);
  EXPECT_THAT(record_.calls, ElementsAre("all_gather [1 1 1] of [1] in 60.0 s"));
  group.all_gather(three(), torch::ones({2}));  // the group still works
  EXPECT_THAT(dist_error_of([&] { group.send(tensor, 0); }).what(), HasSubstr("send: what this"));
  EXPECT_THAT(dist_error_of([&] {
                group.batch_isend_irecv({{P2POp::Kind::kSend, tensor, 2, 1}});
              }).what(),
              HasSubstr("batch_isend_irecv: what this"));
  group.recv(tensor, 0);                 // recv only writes the tensor
  group.broadcast(tensor, {.root = 0});  // so does broadcast on this rank
  group.all_reduce(torch::ones({1}, torch::kInt32));
}

TEST_F(VerifyTest, ANanOfAnotherRankIsNamed) {
  ProcessGroup& group = this->group({.nan = true});
  let_differ(2);
  const DistError failure = dist_error_of([&] { group.all_reduce(torch::ones({1})); });
  EXPECT_STREQ(failure.what(),
               "all_reduce (collective 1): what rank 2 gives holds 1 NaN; nothing was sent");
  EXPECT_EQ(failure.peer_rank(), 2);
}

TEST_F(VerifyTest, AFailureOfACheckSaysInWhichCallAndWhy) {
  ProcessGroup& group = this->group({.nan = true, .results = true});
  let_differ(3);
  record_.result = Error{.kind = ErrorKind::kTimeout,
                         .doing = "all_gather #1 of 1 i64",
                         .cause = "rank 2 did not arrive",
                         .peer_rank = 2};
  const DistError failure = dist_error_of([&] { group.all_reduce(torch::ones({5})); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kTimeout);
  EXPECT_EQ(failure.peer_rank(), 2);
  EXPECT_THAT(failure.what(),
              HasSubstr("all_reduce of 20 bytes (sum of float32) (collective 1), looking for NaN: "
                        "all_gather #1 of 1 i64: rank 2 did not arrive"));
}

TEST_F(VerifyTest, WhoWaitsInACheckIsInTheCall) {
  const auto reporter = WorkerReporter::open({});
  ASSERT_TRUE(reporter->has_page());
  const auto page = MappedPages::map(reporter->place(), MappedPages::Access::kRead).value();
  ProcessGroup group(std::make_unique<RecordingBackend>(record_, 1, 3), torch::kCPU, seconds(60),
                     reporter, GroupIdentity(), {.nan = true, .results = true});
  int checks = 0;
  record_.gather = [&](TensorList outputs, TensorList inputs) {
    ++checks;
    for (const Tensor& one : outputs) torch::Tensor(one).copy_(inputs[0]);
    const auto call = oldest_in_progress(page[0]);
    ASSERT_TRUE(call) << "in check " << checks;
    EXPECT_EQ(call->call, FlightCall::kAllReduce);
    EXPECT_EQ(call->collective, checks <= 2 ? 1u : 2u);
  };
  group.all_reduce(torch::ones({5}));
  EXPECT_EQ(checks, 2);
  EXPECT_FALSE(oldest_in_progress(page[0]));
  EXPECT_FALSE(read_record(page[0], 1)->failed);
  EXPECT_DIST_ERROR(group.all_reduce(torch::full({1}, std::numeric_limits<float>::quiet_NaN())),
                    DistError::Kind::kInvalidArgument, HasSubstr("NaN"));
  EXPECT_TRUE(read_record(page[0], 2)->failed);
}

TEST_F(ProcessGroupTest, AWaitThatIsTooShortNamesItsCall) {
  record_.works = {Work(std::make_shared<detail::HostWork>())};
  const Work work = group_.all_reduce(torch::ones({1000}), {.async = true});
  EXPECT_DIST_ERROR(work.wait(milliseconds(1)), DistError::Kind::kTimeout,
                    HasSubstr("wait for all_reduce of 4000 bytes (sum of float32) (collective 1): "
                              "it is not complete"));
  record_.works = {Work(std::make_shared<detail::HostWork>())};
  const Work message = group_.irecv(torch::ones({2}), 2, {.tag = 7});
  EXPECT_DIST_ERROR(message.wait(milliseconds(1)), DistError::Kind::kTimeout,
                    HasSubstr("wait for recv of 8 bytes of float32 from rank 2, tag 7: it is"));
}

TEST_F(ProcessGroupTest, AnObjectThatCannotBeWrittenIsRefusedInOneLine) {
  const DistError failure = dist_error_of([&] { all_gather_object(group_, Tensor()); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kInvalidArgument);
  EXPECT_THAT(failure.what(), testing::StartsWith("write an object: "));
  EXPECT_THAT(failure.what(), testing::Not(HasSubstr("\n")));
  EXPECT_TRUE(record_.calls.empty());
}

TEST_F(ProcessGroupTest, AnObjectThatCannotBeReadIsRefusedInOneLine) {
  Tensor read;
  const DistError failure = dist_error_of([&] { detail::from_bytes("no tensor", read); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kCorrupt);
  EXPECT_THAT(failure.what(), testing::StartsWith("read an object: "));
  EXPECT_THAT(failure.what(), testing::Not(HasSubstr("\n")));
}

TEST_F(ProcessGroupTest, AbortReachesTheBackendWithItsReason) {
  group_.abort("the test wants it");
  EXPECT_EQ(record_.aborted, "the test wants it");
}

TEST_F(ProcessGroupTest, ATimeoutBeyondAllTimeIsCutToOneThatCanBeAdded) {
  group_.barrier({.timeout = nanoseconds::max()});
  EXPECT_THAT(record_.calls, ElementsAre(HasSubstr("525600.0 min")));
}

TEST_F(ProcessGroupTest, ASecondThreadIsRefused) {
  const Tensor tensor = torch::zeros({1});
  record_.during = [&] {
    std::thread second([&] {
      const auto expect_refused = [](const auto& call) {
        EXPECT_DIST_ERROR(call(), DistError::Kind::kInvalidArgument,
                          HasSubstr("two threads call into group world at a time"));
      };
      expect_refused([&] { group_.barrier(); });
      expect_refused([&] { group_.send(tensor, 0); });
      expect_refused([&] { group_.irecv(tensor, 0); });
      expect_refused([&] { group_.batch_isend_irecv({{P2POp::Kind::kSend, tensor, 0}}); });
    });
    second.join();
  };
  group_.all_reduce(tensor);
  group_.barrier();  // the group is free again
  group_.send(tensor, 0);
  EXPECT_EQ(record_.calls.size(), 3u);
}

TEST_F(ProcessGroupTest, ASecondThreadMaySendWhereTheBackendAllowsIt) {
  record_.sends_on_any_thread = true;
  const Tensor tensor = torch::zeros({1});
  record_.during = [&] {
    std::thread second([&] {
      group_.send(tensor, 0);
      EXPECT_DIST_ERROR(group_.barrier(), DistError::Kind::kInvalidArgument,
                        HasSubstr("two threads"));
    });
    second.join();
  };
  group_.all_reduce(tensor);
  EXPECT_EQ(record_.calls.size(), 2u);
}

TEST_F(ProcessGroupTest, AGroupOfNoContextCannotBeSplit) {
  EXPECT_DIST_ERROR(group_.split(0), DistError::Kind::kUnsupported, HasSubstr("split"));
  EXPECT_THAT(group_.world_ranks(), ElementsAre(0, 1, 2));
}

// --- wrong arguments

struct WrongCall {
  std::string message;  // the whole message, as the user sees it
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
           "reduce: tensor is ComplexHalf; collectives know Bool, Byte, Char, Short, Int, Long, "
           "Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble, UInt16, UInt32, UInt64, "
           "Float8_e5m2, Float8_e4m3fn, Float8_e5m2fnuz, Float8_e4m3fnuz and Float8_e8m0fnu",
           [](auto& group) { group.reduce(torch::empty({2}, torch::kComplexHalf)); }},
       WrongCall{"all_reduce: op sum cannot reduce UInt16: tensors of this dtype can be moved "
                 "(broadcast, all_gather, send, ...), but not reduced; convert it",
                 [](auto& group) { group.all_reduce(torch::empty({2}, torch::kUInt16)); }},
       WrongCall{"reduce: op max cannot reduce Float8_e4m3fn: tensors of this dtype can be moved "
                 "(broadcast, all_gather, send, ...), but not reduced; convert it",
                 [](auto& group) {
                   group.reduce(torch::empty({2}, torch::kFloat8_e4m3fn), {.op = ReduceOp::kMax});
                 }},
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
                 }},
       WrongCall{"all_reduce: tensor is a lazily conjugated view; pass tensor.resolve_conj()",
                 [](auto& group) {
                   group.all_reduce(torch::conj(torch::zeros({1}, torch::kComplexFloat)));
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
       WrongCall{
           "reduce_scatter: output shares memory with inputs[2]; it may only be the same memory "
           "as inputs[rank]",
           [](auto& group) {
             const std::vector<Tensor> inputs = three();
             group.reduce_scatter(inputs[2], inputs);
           }},
       WrongCall{
           "reduce_scatter_tensor: output shares memory with input's parts[0]; it may only be the "
           "same memory as input's parts[rank]",
           [](auto& group) {
             const Tensor whole = torch::zeros({6});
             group.reduce_scatter_tensor(whole.narrow(0, 1, 2), whole);
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

TEST_F(ProcessGroupTest, RefusesListsAndPartsThatDoNotFitByName) {
  expect_refused(
      group_, record_,
      {WrongCall{"all_reduce_coalesced: tensors must hold at least one tensor",
                 [](auto& group) { group.all_reduce_coalesced({}); }},
       WrongCall{
           "all_reduce_coalesced: tensors must have one dtype, but tensors[0] is Float and "
           "tensors[1] is Int",
           [](auto& group) {
             group.all_reduce_coalesced({torch::zeros({1}), torch::zeros({1}, torch::kInt32)});
           }},
       WrongCall{"broadcast_coalesced: tensors[0] and tensors[1] share memory, but each is written",
                 [](auto& group) {
                   const Tensor one = torch::zeros({1});
                   group.broadcast_coalesced({one, one});
                 }},
       WrongCall{"all_gather_coalesced: outputs must hold one tensor per rank, 3, but holds 2",
                 [](auto& group) {
                   group.all_gather_coalesced({{torch::zeros({1})}, {torch::zeros({1})}},
                                              {torch::zeros({1})});
                 }},
       WrongCall{
           "all_gather_coalesced: outputs of a rank must hold as many tensors as inputs, 1, but "
           "holds 2",
           [](auto& group) { group.all_gather_coalesced({two_of_three()}, {torch::zeros({1})}); }},
       WrongCall{
           "all_gather_coalesced: outputs[1] must be like inputs[0], Float of shape [1], but is "
           "Float of shape [2]",
           [](auto& group) {
             group.all_gather_coalesced(
                 {{torch::zeros({1})}, {torch::zeros({2})}, {torch::zeros({1})}},
                 {torch::zeros({1})});
           }},
       WrongCall{
           "all_gather_into_tensor: output must hold 3 times the elements of input, Float of shape "
           "[2], but is Float of shape [5]",
           [](auto& group) { group.all_gather_into_tensor(torch::zeros({5}), torch::zeros({2})); }},
       WrongCall{
           "all_gather_into_tensor: input shares memory with output's parts[0]; it may only be the "
           "same memory as output's parts[rank]",
           [](auto& group) {
             const Tensor whole = torch::zeros({6});
             group.all_gather_into_tensor(whole, whole.narrow(0, 0, 2));
           }},
       WrongCall{
           "all_gather_into_tensor_coalesced: outputs must hold as many tensors as inputs, 1, but "
           "holds 2",
           [](auto& group) {
             group.all_gather_into_tensor_coalesced(two_of_three(), {torch::zeros({2})});
           }},
       WrongCall{
           "reduce_scatter_tensor: input must hold 3 times the elements of output, Float of shape "
           "[2], but is Double of shape [6]",
           [](auto& group) {
             group.reduce_scatter_tensor(torch::zeros({2}), torch::zeros({6}, torch::kFloat64));
           }},
       WrongCall{
           "reduce_scatter_tensor_coalesced: outputs[0] shares memory with inputs[0]; it may only "
           "be this rank's share of inputs[0]",
           [](auto& group) {
             const Tensor whole = torch::zeros({6});
             group.reduce_scatter_tensor_coalesced({whole.narrow(0, 0, 2)}, {whole});
           }},
       WrongCall{
           "reduce_scatter_tensor_coalesced: outputs[0] shares memory with inputs[1]; it may only "
           "be this rank's share of inputs[0]",
           [](auto& group) {
             const Tensor one = torch::zeros({6}), other = torch::zeros({6});
             group.reduce_scatter_tensor_coalesced({other.narrow(0, 2, 2), one.narrow(0, 2, 2)},
                                                   {one, other});
           }},
       WrongCall{"all_to_all: outputs[1] must be Float like inputs[0], but is Long",
                 [](auto& group) {
                   group.all_to_all(with_second(torch::zeros({1}, torch::kInt64)), three());
                 }},
       WrongCall{"all_to_all: this rank, 1, has 2 elements for itself, but room for 3",
                 [](auto& group) { group.all_to_all(with_second(torch::zeros({3})), three()); }},
       WrongCall{
           "all_to_all_single: the first dimension of input, 5, must be a multiple of the number "
           "of "
           "ranks, 3, or input_splits be given",
           [](auto& group) { group.all_to_all_single(torch::zeros({6}), torch::zeros({5})); }},
       WrongCall{"all_to_all_single: output_splits must have one length per rank, 3, but has 2",
                 [](auto& group) {
                   group.all_to_all_single(torch::zeros({6}), torch::zeros({6}),
                                           {.output_splits = {3, 3}});
                 }},
       WrongCall{"all_to_all_single: input_splits [7, -1, 0] must be lengths of at least 0 that "
                 "add up to "
                 "6, the first dimension of input",
                 [](auto& group) {
                   group.all_to_all_single(torch::zeros({6}), torch::zeros({6}),
                                           {.input_splits = {7, -1, 0}});
                 }},
       WrongCall{"all_to_all_single: input must have at least one dimension",
                 [](auto& group) { group.all_to_all_single(torch::zeros({0}), torch::zeros({})); }},
       WrongCall{"scatter_object: values must hold one value per rank, 3, on the root, 1, and none "
                 "elsewhere, but holds 2 on rank 1",
                 [](auto& group) {
                   group.scatter_object({1, 2}, 1);
                 }}});
}

TEST_F(ProcessGroupTest, RefusesRanksTagsTimesAndOpsThatCannotBeMeant) {
  expect_refused(
      group_, record_,
      {WrongCall{"broadcast: root 3 is not a rank of this group; its ranks are 0 to 2",
                 [](auto& group) { group.broadcast(torch::zeros({2}), {.root = 3}); }},
       WrongCall{"reduce: root -1 is not a rank of this group; its ranks are 0 to 2",
                 [](auto& group) { group.reduce(torch::zeros({2}), {.root = -1}); }},
       WrongCall{"broadcast_object: root 3 is not a rank of this group; its ranks are 0 to 2",
                 [](auto& group) { group.broadcast_object(1, 3); }},
       WrongCall{"send: destination 4 is not a rank of this group; its ranks are 0 to 2",
                 [](auto& group) { group.send(torch::zeros({2}), 4); }},
       WrongCall{
           "batch_isend_irecv: operations[1].peer 3 is not a rank of this group; its ranks are 0 "
           "to 2",
           [](auto& group) {
             group.batch_isend_irecv({{P2POp::Kind::kSend, torch::zeros({2}), 0},
                                      {P2POp::Kind::kRecv, torch::zeros({2}), 3}});
           }},
       WrongCall{"recv: source 1 is this rank itself; copy the tensor instead",
                 [](auto& group) { group.recv(torch::zeros({2}), 1); }},
       WrongCall{"send: tag -1 must not be negative",
                 [](auto& group) { group.send(torch::zeros({2}), 0, {.tag = -1}); }},
       WrongCall{"barrier: timeout must be more than zero, but is 0 us",
                 [](auto& group) { group.barrier({.timeout = nanoseconds(0)}); }},
       WrongCall{"barrier: timeout must be more than zero, but is -1.0 s",
                 [](auto& group) { group.barrier({.timeout = std::chrono::seconds(-1)}); }},
       WrongCall{
           "all_reduce: op avg needs a floating-point or complex tensor, but this one is Long",
           [](auto& group) {
             group.all_reduce(torch::zeros({2}, torch::kInt64), {.op = ReduceOp::kAvg});
           }},
       WrongCall{"all_reduce: there is no op 99",
                 [](ProcessGroup& group) {
                   group.all_reduce(torch::zeros({1}), {.op = static_cast<ReduceOp>(99)});
                 }},
       WrongCall{"reduce_scatter: op bxor needs an integer or bool tensor, but this one is Float",
                 [](auto& group) {
                   group.reduce_scatter(torch::zeros({2}), three(), {.op = ReduceOp::kBitXor});
                 }},
       WrongCall{"all_reduce: op max needs a tensor of real numbers, but this one is ComplexFloat",
                 [](auto& group) {
                   group.all_reduce(torch::zeros({2}, torch::kComplexFloat),
                                    {.op = ReduceOp::kMax});
                 }},
       WrongCall{"all_reduce: premul_factor is for op premul_sum, not sum",
                 [](auto& group) { group.all_reduce(torch::zeros({2}), {.premul_factor = 2}); }},
       WrongCall{
           "all_gather_object: value is a discarded JSON value (the result of a failed parse)",
           [](auto& group) {
             group.all_gather_object(nlohmann::json::parse("{", nullptr, false));
           }}});
}

// --- unusual calls that are allowed

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
