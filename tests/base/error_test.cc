#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/result.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Error, MessageNamesOperationCauseAndTimes) {
  const Error error =
      timeout_error("get key '/a' from store 10.0.0.1:29500", "no answer", seconds(2), seconds(5));
  EXPECT_EQ(error.message(),
            "get key '/a' from store 10.0.0.1:29500: no answer (waited 2.0 s of 5.0 s)");
}

TEST(Error, WithinPutsTheCallersWordsInFront) {
  const Error error = system_error("connect to 10.0.0.1:80", ECONNREFUSED).within("form group");
  EXPECT_EQ(error.message(), "form group: connect to 10.0.0.1:80: Connection refused");
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_EQ(error.sys_errno, ECONNREFUSED);
}

TEST(Error, SystemErrorsFallIntoTheKindThatCallersAskFor) {
  EXPECT_EQ(system_error("open", ENOENT).kind, ErrorKind::kNotFound);
  EXPECT_EQ(system_error("write", ENOSPC).kind, ErrorKind::kResource);
  for (const int out_of_room : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    EXPECT_EQ(system_error("accept", out_of_room).kind, ErrorKind::kResource) << out_of_room;
  }
  EXPECT_EQ(system_error("read", ETIMEDOUT).kind, ErrorKind::kTimeout);
  EXPECT_EQ(system_error("ioctl", ENOTTY).kind, ErrorKind::kSystem);
}

TEST(Duration, TextHasAUnitThatFits) {
  EXPECT_EQ(to_text(std::chrono::microseconds(12)), "12 us");
  EXPECT_EQ(to_text(milliseconds(250)), "250 ms");
  EXPECT_EQ(to_text(milliseconds(4000)), "4.0 s");
  EXPECT_EQ(to_text(seconds(750)), "12.5 min");
}

using ResultDeathTest = testing::Test;

TEST(ResultDeathTest, ValueOfAFailureEndsTheProcessAndSaysWhatFailed) {
  const Result<int> failed = system_error("open /nowhere", ENOENT);
  EXPECT_DEATH({ [[maybe_unused]] const int value = failed.value(); }, "open /nowhere");
}

}  // namespace
}  // namespace ddprun
