// ddprun-ckpt, the program, on checkpoints and files that are whole, damaged, or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "ddprun/checkpoint.h"
#include "ddprun/state_file.h"
#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_world.h"

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
      TrainingState state{.model = net.ptr().get(), .epoch = 4};
      CheckpointManager manager(group, 7, {.directory = run_});
      for (const int step : steps) manager.save(step, state);
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
};

TEST_F(CheckpointTool, ListsWhatThereIsNewestFirst) {
  save({1, 2});
  fs::resize_file(file_of(1), 100);
  const Answer answer = run({"ls", run_});
  EXPECT_EQ(answer.code, 78);
  EXPECT_THAT(answer.out, testing::MatchesRegex(
                              "step 2  epoch 4  20..-..-.. ..:..:..  [0-9.]+ KiB  world of 2  "
                              "generation 7  step-000000000002.pt\n"
                              "step 1  epoch 4  .*damaged: step-000000000001.pt has 100 bytes, its "
                              "manifest says [0-9]+\n"));
  EXPECT_THAT(answer.err, IsEmpty());
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

TEST_F(CheckpointTool, SaysInOneLineWhatItCannotDo) {
  std::ofstream(directory_ / "text") << "no archive";
  fs::create_directory(run_);
  const auto expect = [&](const Arguments& arguments, int code, const std::string& words) {
    const Answer answer = run(arguments);
    EXPECT_EQ(answer.code, code) << words;
    EXPECT_THAT(answer.err, AllOf(StartsWith("ddprun-ckpt: "), HasSubstr(words)));
    EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1) << answer.err;
  };
  expect({}, 2, "give ls, show or verify");
  expect({"frob"}, 2, "give ls, show or verify");
  expect({"ls"}, 2, "DIR is required");
  expect({"show", "--everything", run_}, 2, "--everything");
  expect({"ls", directory_ / "none"}, 73, "none: No such file or directory");
  expect({"ls", directory_ / "text"}, 73, "text is no directory");
  expect({"show", directory_ / "none"}, 73, "none: No such file or directory");
  expect({"show", run_}, 73, "has no whole checkpoint");
  expect({"show", directory_ / "text"}, 78, "it is too short for one");
  expect({"verify", directory_ / "none"}, 73, "none: No such file or directory");
  EXPECT_EQ(run({"ls", run_}).out, "no checkpoint\n");
}

}  // namespace
}  // namespace ddprun
