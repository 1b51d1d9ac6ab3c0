#include "launcher/doctor/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "rendezvous/net/listen.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::IsEmpty;

TEST(ParsePortRanges, LeavesOutWhatIsNone) {
  EXPECT_THAT(parse_port_ranges("8080,9148-9200"),
              ElementsAre(PortRange{8080, 8080}, PortRange{9148, 9200}));
  EXPECT_THAT(parse_port_ranges(""), IsEmpty());
  EXPECT_THAT(parse_port_ranges("x,80"), ElementsAre(PortRange{80, 80}));
}

TEST(TryToListen, NamesWhoHasThePort) {
  const Result<Listener> held = listen_tcp(HostPort{"127.0.0.1", 0});
  ASSERT_TRUE(held) << held.error().message();
  const ListenTry taken = try_to_listen(held->address);
  EXPECT_FALSE(taken.works);
  EXPECT_EQ(taken.why, "Address already in use");
  EXPECT_THAT(taken.holder, EndsWith("(pid " + std::to_string(getpid()) + ")"));
}

TEST(TryToListen, LeavesThePortFree) {
  std::uint16_t port = 0;
  {
    const Result<Listener> free = listen_tcp(HostPort{"127.0.0.1", 0});
    ASSERT_TRUE(free) << free.error().message();
    port = free->address.port;
  }
  EXPECT_TRUE(try_to_listen({"127.0.0.1", port}).works);
  EXPECT_EQ(holder_of_port(port), "");
  EXPECT_TRUE(listen_tcp(HostPort{"127.0.0.1", port}));
}

TEST(CountFree, LeavesOutWhatIsTaken) {
  const Result<Listener> held = listen_tcp(HostPort{"*", 0});
  ASSERT_TRUE(held) << held.error().message();
  const std::uint16_t port = held->address.port;
  EXPECT_EQ(count_free({port, port}).free, 0);
}

}  // namespace
}  // namespace ddprun
