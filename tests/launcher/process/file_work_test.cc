#include "launcher/process/file_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <vector>

#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::eventually;

class FileWorkTest : public testing::Test {
 protected:
  struct Disk {
    std::mutex mutex;
    std::vector<std::string> written;
  };
  FileWorkTest() { files_.set_lease(std::chrono::milliseconds(100)); }

  std::function<Result<void>()> write(const std::string& text) {
    return [disk = disk_, text]() -> Result<void> {
      const std::lock_guard lock(disk->mutex);
      disk->written.push_back(text);
      return {};
    };
  }
  std::vector<std::string> written() {
    const std::lock_guard lock(disk_->mutex);
    return disk_->written;
  }
  // Starts a call that ends when disk_answers_ is set. The call times out.
  void stall() {
    const Result<void> late =
        files_.run<void>("read", [answers = disk_answers_.get_future().share()]() -> Result<void> {
          answers.wait();
          return {};
        });
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().kind, ErrorKind::kTimeout);
  }

  FileWork files_;
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  std::promise<void> disk_answers_;
};

TEST_F(FileWorkTest, TheNewestOfTheCallsThatAreKeptRunsAfterTheLateOne) {
  stall();
  const Result<void> older = files_.run_or_keep("write", write("older"));
  ASSERT_FALSE(older);
  EXPECT_THAT(older.error().message(), HasSubstr("it is written when the disk answers"));
  EXPECT_FALSE(files_.run_or_keep("write", write("newest")));
  EXPECT_FALSE(files_.run<void>("write", write("other")));
  EXPECT_EQ(written(), std::vector<std::string>{});
  disk_answers_.set_value();
  EXPECT_TRUE(eventually([this] { return !written().empty(); }));
  EXPECT_TRUE(eventually([this] { return bool(files_.run_or_keep("write", write("last"))); }));
  EXPECT_EQ(written().front(), "newest");
  EXPECT_EQ(written().back(), "last");
}

TEST_F(FileWorkTest, TheLastCallOfAJobRunsAfterWhatIsKept) {
  stall();
  EXPECT_FALSE(files_.run_or_keep("write", write("running")));
  files_.forget_lease();
  disk_answers_.set_value();
  EXPECT_TRUE(files_.run_or_keep("write", write("ended")));
  EXPECT_EQ(written(), (std::vector<std::string>{"running", "ended"}));
}

TEST_F(FileWorkTest, AnExceptionIsAnErrorAndLaterCallsRun) {
  files_.forget_lease();
  const Result<void> failed = files_.run<void>(
      "write report", []() -> Result<void> { throw std::runtime_error("no memory"); });
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("write report"));
  EXPECT_THAT(failed.error().message(), HasSubstr("no memory"));
  EXPECT_TRUE(files_.run<void>("write", write("next")));
}

}  // namespace
}  // namespace ddprun
