#include "launcher/process/cpu_affinity.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "base/usable_cpus.h"

namespace ddprun {
namespace {

// Runs `body` on its own thread, so that the test's thread keeps its CPUs.
void in_a_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(CpuAffinity, IsTakenByTheThread) {
  in_a_thread([] {
    const int last = usable_cpus().back();
    EXPECT_TRUE(CpuAffinity(CpuSet{last}).take());
    EXPECT_EQ(usable_cpus(), std::vector<int>{last});
  });
}

TEST(CpuAffinity, OfNoCpuChangesNothing) {
  in_a_thread([] {
    const std::vector<int> before = usable_cpus();
    EXPECT_TRUE(CpuAffinity(CpuSet{}).take());
    EXPECT_EQ(usable_cpus(), before);
  });
}

TEST(CpuAffinity, HasRoomForEveryNumber) {
  in_a_thread([] {
    const int first = usable_cpus().front();
    EXPECT_TRUE(CpuAffinity(CpuSet{first, 5000}).take());
    EXPECT_EQ(usable_cpus(), std::vector<int>{first});
    EXPECT_FALSE(CpuAffinity(CpuSet{5000}).take());
    EXPECT_EQ(errno, EINVAL);
  });
}

}  // namespace
}  // namespace ddprun
