#include "worker_lib/group/any_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/thread_world.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing_support::ThreadWorld;

TEST(LateRequests, AreKnownInTheNextCallAndNoRankWaitsForAnother) {
  std::atomic<bool> has_begun = false;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    LateRequests requests(group);
    EXPECT_THAT(requests.take_previous({true, true}), ElementsAre(false, false))
        << "nothing was sent yet";
    if (group.rank() == 0) {
      requests.send({true, false});
      has_begun = true;
    } else {
      EXPECT_TRUE(testing_support::eventually([&] { return has_begun.load(); }));
      requests.send({false, false});
    }
    EXPECT_THAT(requests.take_previous({false, true}), ElementsAre(true, false));
    EXPECT_THAT(requests.take_previous({true, true}), ElementsAre(false, false))
        << "each is said once";
    requests.send({false, true});  // the requests of the last step are never read
  });
}

TEST(LateRequests, OfAWorldOfOneAreKnownAtOnce) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    LateRequests requests(group);
    requests.send({false, false});
    EXPECT_THAT(requests.take_previous({true, false}), ElementsAre(true, false));
  });
}

}  // namespace
}  // namespace ddprun
