#include "launcher/plan/core/nested_launcher.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

// Returns the message for `ddprun [-m] words...`; empty: there is none.
std::string said(std::vector<std::string> words, bool module = false) {
  LaunchOptions options;
  options.module = module;
  options.program = words.front();
  options.args.assign(words.begin() + 1, words.end());
  return explain_nested_launcher(options).value_or("");
}

std::string command_of(const std::string& text) {
  const std::size_t at = text.find("type: ");
  const std::size_t end = text.find(" (to run");
  return at == std::string::npos ? text : text.substr(at + 6, end - at - 6);
}

TEST(NestedLauncher, SaysWhatToTypeInsteadForEveryWayToStartTorchrun) {
  const std::string expected = "ddprun --nproc-per-node=8 train.py --lr 3";
  const std::vector<std::string> rest{"--nproc-per-node=8", "train.py", "--lr", "3"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  };
  EXPECT_EQ(command_of(said(with({"torchrun"}))), expected);
  EXPECT_EQ(command_of(said(with({"/opt/venv/bin/torchrun"}))), expected);
  EXPECT_EQ(command_of(said(with({"torch.distributed.run"}), true)), expected);
  EXPECT_EQ(command_of(said(with({"python", "-m", "torch.distributed.run"}))), expected);
  EXPECT_EQ(command_of(said(
                with({"/usr/bin/python3.11", "-u", "-W", "ignore", "-mtorch.distributed.launch"}))),
            expected);
  EXPECT_EQ(command_of(said(with({"python3", "/opt/venv/bin/torchrun"}))), expected);
  EXPECT_EQ(command_of(said(with({"/x/site-packages/torch/distributed/run.py"}))), expected);
  EXPECT_EQ(command_of(said(with({"ddprun"}))), expected);
}

TEST(NestedLauncher, QuotesWhatAShellWouldReadOtherwise) {
  EXPECT_EQ(command_of(said({"torchrun", "train.py", "--name=a b", "$HOME", "it's", ""})),
            R"(ddprun train.py '--name=a b' '$HOME' 'it'\''s' '')");
}

TEST(NestedLauncher, NamesTheLauncherAndTheWayOut) {
  const std::string text = said({"python", "-m", "torch.distributed.run", "train.py"});
  EXPECT_TRUE(text.starts_with("torch.distributed.run starts workers itself")) << text;
  EXPECT_TRUE(text.ends_with("(to run a launcher in each worker: sh -c '...')")) << text;
}

TEST(NestedLauncher, LeavesEveryOtherProgramAlone) {
  EXPECT_EQ(said({"train.py", "torchrun"}), "");
  EXPECT_EQ(said({"./torchrun_like"}), "");
  EXPECT_EQ(said({"package.train", "torch.distributed.run"}, true), "");
  EXPECT_EQ(said({"torchrun"}, true), "");  // a module with that name
  EXPECT_EQ(said({"python", "train.py", "-m", "torch.distributed.run"}), "");
  EXPECT_EQ(said({"python", "-m", "package.train", "torchrun"}), "");
  EXPECT_EQ(said({"python", "-c", "import torch"}), "");
  EXPECT_EQ(said({"python", "-m"}), "");
  EXPECT_EQ(said({"sh", "-c", "torchrun train.py"}), "");
}

}  // namespace
}  // namespace ddprun
