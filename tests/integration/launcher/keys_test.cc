// Tests ddprun and ddp-rendezvous with keys, as whole programs: which connections are
// admitted, which are refused, and where the key must not be found.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/host_port.h"
#include "base/unique_fd.h"
#include "rendezvous/auth/core/proof.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/held_port.h"
#include "tests/support/http_get.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kKey = "0123456789abcdef-of-the-test";
constexpr const char* kWrongKey = "fedcba9876543210-of-the-test";

// Returns whether the text is in memory that a core dump of the process would hold. Also
// searches memory where the program's file is mapped, which a core dump leaves out. nullopt:
// the memory of the process cannot be read.
std::optional<bool> is_in_memory(pid_t pid, const std::string& text) {
  const std::string process = "/proc/" + std::to_string(pid);
  const UniqueFd memory(open((process + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  std::ifstream maps(process + "/smaps");
  if (!memory.valid() || !maps) return std::nullopt;
  unsigned long begin = 0, end = 0, resident = 0;
  bool is_found = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      begin = first;
      end = last;
    }
    std::sscanf(line.c_str(), "Rss: %lu kB", &resident);
    const bool is_last = line.starts_with("VmFlags:");
    if (!is_last || resident == 0 || line.find(" dd") != line.npos) continue;
    std::string bytes(end - begin, '\0');
    const ssize_t size = pread(memory.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin));
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
    is_found = is_found || bytes.find(text) != bytes.npos;
  }
  return is_found;
}

class Keys : public RendezvousTest {
 protected:
  std::string key_file(const std::string& text, const std::string& name = "key") const {
    std::string path = directory_ / name;
    std::ofstream(path) << text << "\n";
    chmod(path.c_str(), 0600);
    return path;
  }
};

TEST_F(Keys, NodesThatHaveItMeetAndItIsFoundNowhere) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0", "--rdzv-key-file=" + key_file(kKey)});
  const std::string endpoint = listening_address(*service);
  const std::string script = until_go_after("env; echo ready");
  auto a = start(node(endpoint, {"--rdzv-key-file=" + key_file(kKey)}, script));
  auto b = start(node(endpoint, {}, script), {{"DDPRUN_RDZV_KEY", kKey}});
  ASSERT_TRUE(a->wait_for_out("ready")) << a->err();
  ASSERT_TRUE(b->wait_for_out("ready")) << b->err();
  const std::vector<pid_t> all = left_behind();
  EXPECT_EQ(is_in_memory(getpid(), kKey), true) << "this process has it in plain memory";
  EXPECT_GE(all.size(), 9u) << "the service, and of each node guardian, keeper, agent, worker";
  std::string unread;
  for (const pid_t pid : all) {
    for (const char* what : {"/environ", "/cmdline"}) {
      EXPECT_THAT(read_file("/proc/" + std::to_string(pid) + what), Not(HasSubstr(kKey)))
          << describe_processes({pid});
    }
    const std::optional<bool> is_there = is_in_memory(pid, kKey);
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    const bool is_gone = stat.empty() || stat.find(") Z ") != std::string::npos;  // a sleep
    if (is_there) {
      EXPECT_FALSE(*is_there) << describe_processes({pid});
    } else if (!is_gone) {
      unread += describe_processes({pid});
    }
  }
  let_go();
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  end(*service);
  for (const auto* one : {a.get(), b.get(), service.get()}) {
    EXPECT_THAT(one->out() + one->err(), Not(HasSubstr(kKey)));
    EXPECT_THAT(one->out(), Not(HasSubstr("DDPRUN_RDZV_KEY")));
    EXPECT_THAT(one->err(), Not(HasSubstr("anyone")));
  }
  if (!unread.empty()) GTEST_SKIP() << "this system does not let us read the memory of " << unread;
}

TEST_F(Keys, ANodeWithoutItIsRefusedWithTheReason) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0", "--rdzv-key-file=" + key_file(kKey)});
  const std::string endpoint = listening_address(*service);
  auto without = start(node(endpoint, {}, "true"));
  EXPECT_EQ(without->wait(), 66);
  EXPECT_THAT(without->err(), HasSubstr("this service requires a key"));
  auto wrong = start(node(endpoint, {}, "true"), {{"DDPRUN_RDZV_KEY", kWrongKey}});
  EXPECT_EQ(wrong->wait(), 66);
  EXPECT_THAT(wrong->err(), HasSubstr("is not the key that this service has for job 'job'"));
  end(*service);
}

TEST_F(Keys, AnAgentThatServesWantsItFromTheOthers) {
  const HeldPort held;
  const Arguments with{"--rdzv-key-file=" + key_file(kKey)};
  auto a = start(node(held.endpoint(), with, "true"));
  ASSERT_TRUE(a->wait_for_err("waiting")) << a->err();
  auto unauthenticated = start(node(held.endpoint(), {}, "true"));
  EXPECT_EQ(unauthenticated->wait(), 66) << unauthenticated->err();
  auto b = start(node(held.endpoint(), with, "true"));
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_EQ(a->wait(), 0) << a->err();
}

TEST_F(Keys, AreWantedByThoseWhoSaySo) {
  const HeldPort held;
  auto job = start(node(held.endpoint(), {"--require-auth", "--munge-socket=none"}, "true"));
  EXPECT_EQ(job->wait(), 2);
  EXPECT_THAT(job->err(), HasSubstr("--require-auth: needs a key"));
  auto service = start_rendezvous({"--listen=*:0", "--require-auth", "--munge-socket=none"});
  EXPECT_EQ(service->wait(), 2);
  EXPECT_THAT(service->err(), HasSubstr("--require-auth: anyone who can reach"));
  auto alone = start({"--standalone", "--require-auth", "true"});
  EXPECT_EQ(alone->wait(), 0) << alone->err();
}

TEST_F(Keys, AServiceThatListensEverywhereWithoutOneWarns) {
  auto service = start_rendezvous({"--listen=*:0", "--munge-socket=none"});
  EXPECT_NE(listening_address(*service), "");
  EXPECT_TRUE(service->wait_for_err("warning: anyone who can reach")) << service->err();
  end(*service);
}

TEST_F(Keys, WrongOnesAreNamedWithoutBeingShown) {
  EXPECT_THAT(failure_of_node({"--rdzv-key-file=" + directory_.path() + "/nothing"}),
              testing::Pair(73, HasSubstr("/nothing: No such file")));
  EXPECT_THAT(
      failure_of_node({"--rdzv-key-file=" + key_file("secret")}),
      testing::Pair(2, testing::AllOf(HasSubstr("line 1: a key needs at least 16 characters"),
                                      Not(HasSubstr("secret")))));
  EXPECT_THAT(failure_of_node({"--rdzv-key-file=" + key_file("another " + std::string(kKey))}),
              testing::Pair(2, HasSubstr("the file has no key for job 'job'")));
  EXPECT_THAT(
      failure_of_node({"--store-allow=10.0.0.0/99"}),
      testing::Pair(
          2, HasSubstr(
                 "--store-allow: invalid value '10.0.0.0/99' (expected an address or a network")));
}

TEST_F(Keys, AreReadAgainAtSighup) {
  const std::string path = key_file(kKey, "service");
  auto service = start_rendezvous({"--listen=127.0.0.1:0", "--rdzv-key-file=" + path});
  const std::string endpoint = listening_address(*service);
  key_file("mistake", "service");
  service->signal(SIGHUP);
  ASSERT_TRUE(service->wait_for_err("the keys stay as they are"));
  key_file("job " + std::string(kWrongKey), "service");
  service->signal(SIGHUP);
  ASSERT_TRUE(service->wait_for_err("has read the keys again"));
  auto old = start(node(endpoint, {"--rdzv-key-file=" + key_file(kKey)}, "true"));
  EXPECT_EQ(old->wait(), 66) << old->err();
  end(*service);
}

TEST_F(Keys, WithNothingToReadAgainAHangupEndsTheService) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0"});
  EXPECT_NE(listening_address(*service), "");
  service->signal(SIGHUP);
  EXPECT_EQ(service->wait(), 128 + SIGHUP);
}

TEST_F(Keys, TheTokenForThePagesFollowsFromThem) {
  const std::string file = "--rdzv-key-file=" + key_file(kKey);
  auto print = start_rendezvous({"--print-read-token", file});
  ASSERT_EQ(print->wait(), 0) << print->err();
  EXPECT_EQ(print->out(), read_token_of(kKey) + "\n");
  auto none = start_rendezvous({"--print-read-token"});
  EXPECT_EQ(none->wait(), 2);
  auto service = start_rendezvous({"--listen=127.0.0.1:0", file});
  const std::string endpoint = listening_address(*service);
  const std::uint16_t port = parse_host_port(endpoint)->port;
  EXPECT_EQ(http_get(port, "/metrics").status, 401);
  const std::string token = print->out().substr(0, print->out().size() - 1);
  EXPECT_EQ(http_get(port, "/metrics", "Bearer " + token).status, 200);
  end(*service);
}

}  // namespace
}  // namespace ddprun::testing_support
