#include "worker_lib/context/checkpoint_announcement.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/raw_store_client.h"
#include "tests/support/running_store.h"

namespace ddprun {
namespace {

using namespace testing_support;

TEST(AnnounceCheckpoint, TheStoresHostHasSeenItWhenTheCallReturns) {
  std::atomic<int> times = 0;
  StoreServerOptions options;
  options.watched_key = "/" + std::string(kCheckpointKey);
  options.watched_key_set = [&] { ++times; };
  RunningStore store(options);
  WorkerEnv env;
  env.master_addr = "127.0.0.1";
  env.master_port = store.port();
  for (int i = 1; i <= 3; ++i) {
    const Result<void> told = announce_checkpoint(env, 100 * i);
    ASSERT_TRUE(told) << told.error().message();
    EXPECT_EQ(times, i);
  }
  RawStoreClient client(store);
  EXPECT_EQ(client.ask(request(Command::kGet, {options.watched_key}), 11), string_reply("300"));
}

}  // namespace
}  // namespace ddprun
