#include "launcher/options/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  const Result<ConfigFile> file = parse_config_file("job.json", text);
  EXPECT_FALSE(file) << text;
  return file ? "" : file.error().message();
}

TEST(ConfigFile, HoldsOptionsAsTheCommandLineWritesThem) {
  const Result<ConfigFile> file = parse_config_file("job.json", R"({
    "nproc_per_node": 8, "rdzv-conf": "join_timeout=60", "standalone": true, "shutdown-grace": 1.5,
    "program": "./train", "args": ["--epochs", 10, "a b"]})");
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_THAT(file->texts.at("nproc-per-node"), ElementsAre("8"));
  EXPECT_THAT(file->texts.at("rdzv-conf"), ElementsAre("join_timeout=60"));
  EXPECT_THAT(file->texts.at("standalone"), ElementsAre("true"));
  EXPECT_THAT(file->texts.at("shutdown-grace"), ElementsAre("1.5"));
  EXPECT_EQ(file->program, "./train");
  EXPECT_THAT(file->args, ElementsAre("--epochs", "10", "a b"));
}

TEST(ConfigFile, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(error_of("{\n  \"role\": \"x\",\n  bad\n}"),
            "job.json: invalid JSON at line 3, column 3: invalid literal; expected string literal");
  EXPECT_THAT(error_of(R"({"nproc-per-node": 8)"), HasSubstr("column 21: unexpected end of input"));
  EXPECT_THAT(error_of(R"({"max-restarts": 1e999})"),
              HasSubstr("job.json: invalid value '1e999' (expected a number in range)"));
  EXPECT_THAT(error_of(R"({"role": {"a": 1}})"), HasSubstr("'role': found an object"));
  EXPECT_EQ(error_of(R"({"max-restort": 8})"),
            "job.json: 'max-restort': unknown option: did you mean 'max-restarts'?");
  EXPECT_THAT(error_of(""), HasSubstr("invalid JSON at line 1"));
  EXPECT_THAT(error_of("{\"role\": \"\xff\"}"), HasSubstr("invalid JSON at line 1"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("job.json: expected a JSON object"));
  EXPECT_EQ(error_of(R"({"processes": 8})"),
            "job.json: 'processes': unknown option; ddprun --print-config lists them");
  EXPECT_THAT(error_of(R"({"role": null})"), HasSubstr("'role': found null"));
  EXPECT_THAT(error_of(R"({"role": ["a", "b"]})"), HasSubstr("'role': found a list"));
  EXPECT_THAT(error_of(R"({"max-restarts": 1, "max_restarts": 2})"), HasSubstr("given twice"));
  EXPECT_THAT(error_of(R"({"config": "other.json"})"), HasSubstr("on the command line only"));
  EXPECT_THAT(error_of(R"({"help": true})"), HasSubstr("on the command line only"));
  EXPECT_THAT(error_of(R"({"args": ["x"]})"), HasSubstr("'args' without 'program'"));
  EXPECT_THAT(error_of(R"({"program": 3})"), HasSubstr("'program': expected a string"));
}

TEST(ConfigFile, WhatIsNoReadableFileIsNamed) {
  const testing_support::TemporaryDirectory directory;
  const Result<ConfigFile> none = read_config_file(directory / "none.json");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message(),
            "open " + directory / "none.json" + ": No such file or directory");
  EXPECT_FALSE(read_config_file(directory.path()));
}

}  // namespace
}  // namespace ddprun
