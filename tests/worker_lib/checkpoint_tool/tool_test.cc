// Tests the program ddprun-ckpt on checkpoints and files that are whole, damaged or missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <filesystem>
#include <fstream>

#include "ddprun/checkpoint.h"
#include "ddprun/state_file.h"
#include "tests/support/child_process.h"
#include "tests/support/context_world.h"
#include "tests/support/program.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "worker_lib/ddp/consistency_guard.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using namespace testing_support;

struct Answer {
  int code = -1;
  std::string out, err;
};

class CheckpointTool : public testing::Test {
 protected:
  Answer run(const Arguments& arguments) {
    ChildProcess tool(joined({program("ddprun-ckpt")}, arguments));
    const std::optional<int> code = tool.wait();
    return {.code = code.value_or(-1), .out = tool.out(), .err = tool.err()};
  }

  void save(const std::vector<int>& steps) {
    ThreadWorld(2).run([&](ProcessGroup& group) {
      torch::nn::Linear net(3, 2);
      TrainingState state{.model = net.ptr().get(), .epoch = 4, .data = "digits v1"};
      CheckpointManager manager(group, 7, {.directory = run_});
      for (const int step : steps) manager.save(step, state);
    });
  }
  // Saves these steps from two ranks, each its share. Rank 0 also saves the state of the last
  // step into plain_.
  void save_shards(const std::vector<int>& steps) {
    in_a_world_of(2, [&](Context& context) {
      const int rank = context.rank();
      torch::nn::Sequential net{torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                                torch::nn::Linear(4, 2)};
      torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) {
        parameter.fill_(static_cast<float>(parameter.numel()));
        parameter.mutable_grad() = torch::ones_like(parameter);
      }
      torch::optim::Adam optimizer(net->parameters());
      optimizer.step();
      net->buffers()[0].fill_(rank);
      TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer, .epoch = 4};
      CheckpointManager shards(context, {.directory = run_, .sharded = true});
      for (const int step : steps) shards.save(step, state);
      CheckpointManager(context, {.directory = plain_}).save(steps.back(), state);
      shards.wait();
      context.group().barrier();
    });
  }
  std::string file_of(int step) const {
    return run_ + "/step-00000000000" + std::to_string(step) + ".pt";
  }
  static void flip_a_bit(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
    file.seekg(middle);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(middle);
    file.put(byte);
  }

  const TemporaryDirectory directory_;
  const std::string run_ = directory_ / "run";
  const std::string plain_ = directory_ / "plain";
};

TEST_F(CheckpointTool, ListsWhatThereIsNewestFirst) {
  save({1, 2});
  fs::resize_file(file_of(1), 100);
  const Answer answer = run({"ls", run_});
  EXPECT_EQ(answer.code, 78);
  EXPECT_THAT(answer.out,
              testing::MatchesRegex(
                  "step 2  epoch 4  20..-..-.. ..:..:..  [0-9.]+ KiB  world of 2  "
                  "generation 7  model [0-9a-f]+  data 'digits v1'  step-000000000002.pt\n"
                  "step 1  epoch 4  .*damaged: step-000000000001.pt has 100 bytes, but its "
                  "manifest has [0-9]+\n"));
  EXPECT_THAT(answer.err, IsEmpty());
}

TEST_F(CheckpointTool, SendsNoEscapeSequencesOfFilesToTheTerminal) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    TrainingState state{.extra = {{"\x1b[2Jkey",
                                   "\xc2\x9b"
                                   "2Jtext"}},
                        .data = "\x1b]0;title\a\x1b[31mdigits\r",
                        .has_position = false};
    CheckpointManager(group, 0, {.directory = run_}).save(1, state);
  });
  for (const char* command : {"ls", "show", "verify"}) {
    const Answer answer = run({command, run_});
    EXPECT_EQ(answer.code, 0) << answer.err;
    for (const char* bad : {"\x1b", "\a", "\r", "\xc2\x9b"})
      EXPECT_THAT(answer.out, testing::Not(HasSubstr(bad))) << command;
  }
  EXPECT_THAT(run({"ls", run_}).out, HasSubstr("data '?]0;title??[31mdigits?'"));
  EXPECT_THAT(run({"ls", "no\x1b[2Jwhere"}).err, HasSubstr("no?[2Jwhere"));
}

TEST_F(CheckpointTool, ShowsAFileAndADirectorysNewestWholeCheckpoint) {
  save({1, 2});
  fs::resize_file(file_of(2), 100);
  const Answer answer = run({"show", run_});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, AllOf(StartsWith(file_of(1) + ": "), HasSubstr("\nmodel: dict of 2\n"),
                                HasSubstr("\n  weight: float32 [2, 3], 24 bytes\n"),
                                HasSubstr("\nepoch: 4\nstep: 1\n")));
  save_state_dict(directory_ / "net.pt", *torch::nn::Linear(4, 1));
  EXPECT_THAT(run({"show", directory_ / "net.pt"}).out,
              EndsWith("\nweight: float32 [1, 4], 16 bytes\nbias: float32 [1], 4 bytes\n"));
}

TEST_F(CheckpointTool, VerifiesEveryByte) {
  save({1, 2, 3});
  save_state_dict(directory_ / "net.pt", *torch::nn::Linear(40, 10));
  Answer answer = run({"verify", run_, directory_ / "net.pt"});
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.out,
              AllOf(HasSubstr("step 3: whole (SHA-256)\n"), HasSubstr("net.pt: whole (CRC of ")));
  flip_a_bit(file_of(2));
  flip_a_bit(directory_ / "net.pt");
  answer = run({"verify", run_, directory_ / "net.pt"});
  EXPECT_EQ(answer.code, 78);
  EXPECT_THAT(answer.out,
              AllOf(HasSubstr("step 3: whole"),
                    HasSubstr("step 2: damaged: read " + file_of(2) + ": its SHA-256 is not"),
                    HasSubstr("step 1: whole"), HasSubstr("net.pt: damaged: ")));
  EXPECT_EQ(run({"show", directory_ / "net.pt"}).code, 78);
}

TEST_F(CheckpointTool, MergesShardsIntoTheFileThatOneRankWouldHaveWritten) {
  save_shards({1, 2});
  const std::string merged = directory_ / "merged.pt";
  const Answer answer = run({"merge", run_, "-o", merged});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, StartsWith(merged + ": step 2, "));
  const std::string plain = plain_ + "/step-000000000002.pt";
  const auto lines_of = [&](const std::string& path) {
    const std::string text = run({"show", "--all", path}).out;
    return text.substr(text.find('\n'));
  };
  EXPECT_EQ(lines_of(merged), lines_of(plain));
  EXPECT_EQ(lines_of(run_), lines_of(plain));
  EXPECT_EQ(run({"verify", merged}).code, 0) << "its CRCs";
  // Compares every byte of every tensor.
  const auto one = read_pickle(read_file(merged), merged);
  const auto other = read_pickle(read_file(plain), plain);
  EXPECT_EQ(hash_of_value(one), hash_of_value(other));
  EXPECT_TRUE(has_entry(one, "ranks"));
}

TEST_F(CheckpointTool, MergesTheStepThatIsNamedAndWritesOverNothing) {
  save_shards({1, 2});
  save({3});
  const auto merge = [&](const Arguments& more) { return run(joined({"merge", run_}, more)); };
  EXPECT_THAT(merge({"1", "-o", directory_ / "one.pt"}).out, HasSubstr("one.pt: step 1, "));
  EXPECT_THAT(merge({"3", "--output", directory_ / "three.pt"}).out, HasSubstr("step 3"));
  EXPECT_EQ(read_file(directory_ / "three.pt"), read_file(file_of(3))) << "one file as it is";
  const auto expect = [&](const Answer& answer, int code, const std::string& words) {
    EXPECT_EQ(answer.code, code) << words;
    EXPECT_THAT(answer.err, AllOf(StartsWith("ddprun-ckpt: "), HasSubstr(words)));
    EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1) << answer.err;
  };
  expect(merge({"-o", directory_ / "one.pt"}), 73, "one.pt already exists");
  expect(merge({"7", "-o", directory_ / "x.pt"}), 73, "has no checkpoint of step 7");
  expect(merge({"-o", directory_ / "none/x.pt"}), 73, "none/x.pt");
  expect(merge({}), 2, "--output is required");
  flip_a_bit(run_ + "/step-000000000002.shard-0001.pt");
  expect(merge({"2", "-o", directory_ / "x.pt"}), 78, "shard-0001.pt: its SHA-256 is not");
  EXPECT_FALSE(fs::exists(directory_ / "x.pt"));
  EXPECT_THAT(listing(directory_.path()), testing::SizeIs(4)) << "no temporary file is left";
}

TEST_F(CheckpointTool, ListsAndVerifiesShards) {
  save_shards({1, 2});
  EXPECT_THAT(run({"ls", run_}).out,
              HasSubstr("step-000000000002.shard-0000.pt and 1 more shard\n"));
  EXPECT_THAT(run({"verify", run_}).out, HasSubstr("step 2: whole (SHA-256)\n"));
  flip_a_bit(run_ + "/step-000000000002.shard-0001.pt");
  fs::remove(run_ + "/step-000000000001.shard-0001.pt");
  EXPECT_THAT(run({"ls", run_}).out,
              HasSubstr("damaged: step-000000000001.shard-0001.pt: No such file"));
  const Answer answer = run({"verify", run_});
  EXPECT_EQ(answer.code, 78);
  EXPECT_THAT(answer.out, AllOf(HasSubstr("shard-0001.pt: its SHA-256 is not"),
                                HasSubstr("step-000000000001.shard-0001.pt: No such file")));
}

TEST_F(CheckpointTool, SaysInOneLineWhatItCannotDo) {
  std::ofstream(directory_ / "text") << "no archive";
  fs::create_directory(run_);
  const auto expect = [&](const Arguments& arguments, int code, const std::string& words) {
    const Answer answer = run(arguments);
    EXPECT_EQ(answer.code, code) << words;
    EXPECT_THAT(answer.err, AllOf(StartsWith("ddprun-ckpt: "), HasSubstr(words)));
    EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1) << answer.err;
  };
  expect({}, 2, "the command is missing: ls, show, verify, export or import");
  expect({"frob"}, 2, "the command is missing: ls, show, verify, export or import");
  expect({"ls"}, 2, "DIR is required");
  expect({"export", run_}, 2, "export: give one of --torch, --safetensors and --dcp");
  expect({"export", run_, "--torch", "a", "--dcp", "b"}, 2, "export: give one of");
  expect({"show", "--everything", run_}, 2, "--everything");
  expect({"ls", directory_ / "none"}, 73, "none: No such file or directory");
  expect({"ls", directory_ / "text"}, 73, "text is not a directory");
  expect({"show", directory_ / "none"}, 73, "none: No such file or directory");
  expect({"show", run_}, 73, "has no whole checkpoint");
  expect({"show", directory_ / "text"}, 78, "it is too short for one");
  expect({"verify", directory_ / "none"}, 73, "none: No such file or directory");
  EXPECT_EQ(run({"ls", run_}).out, "no checkpoint\n");
}

}  // namespace
}  // namespace ddprun
