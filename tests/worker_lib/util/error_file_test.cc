#include "worker_lib/util/error_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddprun/error.h>
#include <csignal>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing_support::read_file;
using testing_support::TemporaryDirectory;

// Throws in a new thread, because there nothing catches the exception, not even GoogleTest.
template <class Exception>
[[noreturn]] void fail_with(const std::string& path, const Exception& exception) {
  write_uncaught_exceptions_to(path);
  std::thread([&]() { throw exception; }).join();
  std::abort();
}

template <class Exception>
json written(const Exception& exception) {
  const TemporaryDirectory directory;
  const std::string path = directory / "error.json";
  EXPECT_EXIT(fail_with(path, exception), testing::KilledBySignal(SIGABRT), "terminate called");
  return json::parse(read_file(path));
}

TEST(ErrorFile, SaysTypeAndWordsAndWhere) {
  const json file = written(std::runtime_error("boom\nand a stack of LibTorch's"));
  EXPECT_EQ(file["message"]["message"], "std::runtime_error: boom");
  const json& more = file["message"]["extraInfo"];
  EXPECT_THAT(more["py_callstack"].get<std::string>(), testing::StartsWith("Traceback"));
  EXPECT_THAT(more["py_callstack"].get<std::string>(), testing::HasSubstr("\n  "));
  EXPECT_GT(std::stol(more["timestamp"].get<std::string>()), 1'700'000'000);
  EXPECT_FALSE(more.contains("peer_rank"));
}

TEST(ErrorFile, NamesTheRankThatALostPeerIs) {
  const json file =
      written(DistError(DistError::Kind::kPeerLost, "all_reduce: rank 3 closed its connection", 3));
  EXPECT_EQ(file["message"]["message"],
            "ddprun::DistError: all_reduce: rank 3 closed its connection");
  EXPECT_EQ(file["message"]["extraInfo"]["peer_rank"], 3);
  EXPECT_FALSE(
      written(DistError(DistError::Kind::kTimeout, "late", 3))["message"]["extraInfo"].contains(
          "peer_rank"))
      << "who is late is not gone";
}

TEST(ErrorFile, WhatIsNoExceptionIsNamedByItsType) {
  EXPECT_EQ(written(42)["message"]["message"], "int");
}

TEST(ErrorFile, WithoutAPathNothingChanges) {
  EXPECT_EXIT(fail_with("", std::runtime_error("boom")), testing::KilledBySignal(SIGABRT), "boom");
}

}  // namespace
}  // namespace ddprun
