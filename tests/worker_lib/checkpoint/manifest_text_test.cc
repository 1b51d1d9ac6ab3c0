#include "worker_lib/checkpoint/manifest_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(ManifestText, WhatIsWrittenIsReadAgain) {
  CheckpointManifest manifest{.step = 5, .epoch = -1, .generation = 2, .world_size = 3};
  manifest.files = {{"step-000000000005.pt", 7, "ab"}};
  EXPECT_EQ(*decode_manifest(encode_manifest(manifest)), manifest);
  manifest.metric = 0.5;
  manifest.claim = 4;
  manifest.model = "m";
  manifest.data = "d";
  EXPECT_EQ(*decode_manifest(encode_manifest(manifest)), manifest);
}

TEST(ManifestText, AChainThatDoesNotFitItsFileIsRefused) {
  const std::string state(kChainDigits, 'a');
  CheckpointManifest manifest{.step = 5};
  WrittenFile file{.name = "step-000000000005.pt", .bytes = 200, .sha256 = "ab"};
  file.chain_bytes = 64;
  file.chain = state + state + state;
  manifest.files = {file};
  EXPECT_EQ(*decode_manifest(encode_manifest(manifest)), manifest);
  const auto expect_refused = [&](std::uint64_t chain_bytes, const std::string& chain) {
    manifest.files[0].chain_bytes = chain_bytes;
    manifest.files[0].chain = chain;
    const auto read = decode_manifest(encode_manifest(manifest));
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, ErrorKind::kCorrupt) << read.error().message();
  };
  expect_refused(64, state + state);
  expect_refused(64, state + state + state + "a");
  expect_refused(64, state + state + std::string(kChainDigits, 'A'));
  expect_refused(65, state + state + state);
  expect_refused(0, state);
  expect_refused(std::uint64_t{1} << 63, state);
}

TEST(ManifestText, AFileNameReachesTheTerminalAsText) {
  CheckpointManifest manifest{.step = 5};
  WrittenFile file{.name = "a\x1b[2J\x1b]0;title\x07\n.pt", .bytes = 200, .sha256 = "ab"};
  file.chain_bytes = 64;
  file.chain = "short";
  manifest.files = {file};
  EXPECT_THAT(decode_manifest(encode_manifest(manifest)).error().message(),
              HasSubstr("the 'chain' of 'a?[2J?]0;title??.pt' does not fit its size"));
}

TEST(ManifestText, DamageAndWrongFieldsAreNamed) {
  const auto wrong = [](const std::string& text) {
    const Result<CheckpointManifest> manifest = decode_manifest(text);
    return manifest ? "" : manifest.error().message();
  };
  const std::string whole = encode_manifest({.step = 5});
  EXPECT_THAT(wrong(whole + " "), HasSubstr("does not match its own SHA-256"));
  EXPECT_THAT(wrong("[]"), HasSubstr("does not match its own SHA-256"));
  EXPECT_EQ(wrong(encode_manifest({.step = -5})),
            "its 'step' is -5, an integer of at least 0 was expected");
  EXPECT_EQ(wrong(encode_manifest({.world_size = 0})), "its 'world_size' is 0, which no world has");
  EXPECT_EQ(wrong(encode_manifest({.format = 9})), "it has format 9, this program reads format 1");
}

}  // namespace
}  // namespace ddprun
