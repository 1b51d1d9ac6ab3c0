// Tests jobs whose agents elect the one that runs the service, with a real etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/joined.h"
#include "rendezvous/persistence/etcd_codec.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/certificates.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

using Node = std::unique_ptr<ChildProcess>;

class ElectedService : public RendezvousTest {
 protected:
  void SetUp() override {
    RendezvousTest::SetUp();
    if (const std::string why = EtcdCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
    etcd_.emplace(1, has_tls_ ? EtcdCluster::Tls::kYes : EtcdCluster::Tls::kNo);
    for (const HostPort& one : etcd_->endpoints()) endpoints_.push_back(to_text(one));
  }
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); }));
    remove_what_an_early_kill_left();
    RendezvousTest::TearDown();
  }

  // With this lease, agents keep their workers until the next node leads, also on a busy machine.
  Node agent(const std::string& nodes, const std::string& script) {
    return start(joined(place(),
                        {"--rdzv-id=team/job", "--nnodes=" + nodes, "--max-restarts=2000",
                         "--lease=6", "--rdzv-conf=last_call_timeout=0.5" + conf_, "--verbose"},
                        {"sh", "-c", script}),
                 {{"DDPRUN_RDZV_KEY", kKey}});
  }
  Arguments place() const {
    return joined({"--rdzv-backend=etcd-v2", "--rdzv-endpoint=" + ddprun::joined(endpoints_, ",")},
                  tls_);
  }
  // Runs a command about the job, and expects that it succeeds. Returns what it prints.
  std::string command(const Arguments& words) {
    Arguments all = joined(words, place());
    if (!conf_.empty()) all.push_back("--rdzv-conf=" + conf_.substr(1));
    const auto asked = start(joined(all, {"team/job"}), {{"DDPRUN_RDZV_KEY", kKey}});
    EXPECT_EQ(asked->wait(), 0) << asked->err();
    return asked->out();
  }
  // Starts the agent whose service leads.
  Node leader(const std::string& nodes, const std::string& script) {
    auto first = agent(nodes, script);
    EXPECT_TRUE(first->wait_for_err("leads in term")) << first->err();
    return first;
  }
  // Runs a job of two nodes to its end, and expects that it begins with no restart.
  void run_anew() {
    const auto first = leader("2", "echo started $TORCHELASTIC_RESTART_COUNT");
    const auto second = agent("2", "echo started $TORCHELASTIC_RESTART_COUNT");
    EXPECT_EQ(second->wait(), 0) << second->err();
    EXPECT_EQ(first->wait(), 0) << first->err();
    EXPECT_THAT(second->out(), HasSubstr("started 0"));
  }
  static void signal_node(const ChildProcess& node, int signal) {
    const Tree tree = tree_of(node);
    for (const pid_t pid : {tree.guardian, tree.keeper, tree.agent, tree.worker}) {
      if (pid > 1) kill(pid, signal);
    }
  }
  // Loses the node: all of its processes are killed at once.
  static void lose(ChildProcess& node) {
    signal_node(node, SIGKILL);
    node.wait();
  }
  // Returns all that etcd has of the job.
  EtcdContents contents() {
    const EtcdRequest read = read_state(kPrefix);
    const auto found = decode_contents(kPrefix, etcd_->curl(read.path, read.body));
    return found ? *found : EtcdContents();
  }

  static constexpr const char* kPrefix = "/ddprun-jobs/team%2Fjob";
  static constexpr const char* kKey = "0123456789abcdef0123456789abcdef";
  bool has_tls_ = false;
  Arguments tls_;     // options of the nodes' own TLS
  std::string conf_;  // of etcd's TLS, with a comma at its begin
  std::optional<EtcdCluster> etcd_;
  std::vector<std::string> endpoints_;
};

const char* const kRestarted =
    "echo started $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE; "
    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 600; exit 0";

TEST_F(ElectedService, AnElasticJobGoesOnWithoutTheLeadersNode) {
  const auto first = leader("1:2", kRestarted);
  const auto second = agent("1:2", kRestarted);
  ASSERT_TRUE(second->wait_for_out("started 0 of 2")) << first->err() << second->err();
  lose(*first);
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_THAT(second->out(), HasSubstr("started 1 of 1"));
}

TEST_F(ElectedService, ANewJobOfTheSameNameBeginsAnew) {
  for (int run = 0; run < 2; ++run) run_anew();
}

// Both nodes are told to end at once, as by a scheduler. The job that is submitted again must not
// get the verdict of this one.
TEST_F(ElectedService, AJobThatWasToldToEndBeginsAnewTheNextTime) {
  for (int run = 0; run < 3; ++run) {
    const auto first = leader("2", "echo started; exec sleep 600");
    const auto second = agent("2", "echo started; exec sleep 600");
    for (ChildProcess* const one : {first.get(), second.get()})
      ASSERT_TRUE(one->wait_for_out("started")) << one->err();
    for (ChildProcess* const one : {first.get(), second.get()}) kill(one->pid(), SIGTERM);
    EXPECT_EQ(first->wait(), 143) << first->err();
    EXPECT_EQ(second->wait(), 143) << second->err();
  }
  run_anew();
}

TEST_F(ElectedService, EtcdKeepsTheVerdictForADayAndNoKey) {
  const auto job = agent("1", "exit 0");
  EXPECT_EQ(job->wait(), 0) << job->err();
  const EtcdContents found = contents();
  EXPECT_TRUE(found.image.contains("job/team/job")) << "the verdict is kept";
  for (const auto& [key, value] : found.image) EXPECT_EQ(value.find(kKey), value.npos) << key;
  const std::string keys = etcd_->curl("/v3/kv/range", R"({"key":"AA==","range_end":"AA=="})");
  EXPECT_EQ(keys.find(to_base64(kPrefix + std::string("/leader"))), keys.npos) << keys;
  const std::string leases = etcd_->curl("/v3/lease/leases", "{}");
  const std::size_t begin = leases.find(R"("ID":")");
  ASSERT_NE(begin, leases.npos) << leases;
  const std::string id = leases.substr(begin + 6, leases.find('"', begin + 6) - begin - 6);
  const std::string live =
      etcd_->curl("/v3/lease/timetolive", R"({"ID":")" + id + R"(","keys":true})");
  EXPECT_THAT(live, HasSubstr(R"("grantedTTL":"86400")"));
  for (const std::string key : {"/chain", "/state/service", "/state/job/team/job"})
    EXPECT_THAT(live, HasSubstr(to_base64(kPrefix + key)));
}

// A host that no node of the job runs on can ask the job.
TEST_F(ElectedService, CommandsFindTheServiceThroughEtcd) {
  const auto first = leader("1:2", "echo started; exec sleep 600");
  const auto second = agent("1:2", "echo started; exec sleep 600");
  ASSERT_TRUE(second->wait_for_out("started")) << first->err() << second->err();
  EXPECT_THAT(command({"status"}), HasSubstr("team/job"));
  command({"stop", "--now"});
  for (ChildProcess* const one : {first.get(), second.get()}) EXPECT_EQ(one->wait(), 143);
  const auto gone = start(joined({"status"}, place(), {"team/job"}), {{"DDPRUN_RDZV_KEY", kKey}});
  EXPECT_EQ(gone->wait(), 72);
  EXPECT_THAT(gone->err(), HasSubstr("no node leads"));
}

// etcd and the nodes demand certificates of each other.
class ElectedServiceWithTls : public ElectedService {
 protected:
  ElectedServiceWithTls() { has_tls_ = true; }
  void SetUp() override {
    ElectedService::SetUp();
    if (IsSkipped()) return;
    const Authority ours(files_.path(), "ours");
    const IssuedFiles node = ours.issue("node");
    tls_ = {"--rdzv-tls-ca=" + ours.ca_file(), "--rdzv-tls-cert=" + node.cert,
            "--rdzv-tls-key=" + node.key};
    show_to_etcd({etcd_->tls_file("client.crt"), etcd_->tls_file("client.key")});
  }
  void show_to_etcd(const IssuedFiles& files) {
    conf_ = ",protocol=https,cacert=" + etcd_->tls_file("ca.crt") + ",cert=" + files.cert +
            ",key=" + files.key;
  }

  const TemporaryDirectory files_;
};

TEST_F(ElectedServiceWithTls, AJobGoesOnWithoutItsLeaderAndObeysCommands) {
  const std::string script = "echo started $WORLD_SIZE; exec sleep 600";
  const auto first = leader("1:2", script);
  const auto second = agent("1:2", script);
  ASSERT_TRUE(second->wait_for_out("started 2")) << first->err() << second->err();
  lose(*first);
  // The leader key names a dead process until another node leads.
  EXPECT_THAT(command({"status"}), HasSubstr("team/job"));
  ASSERT_TRUE(second->wait_for_out("started 1")) << second->err();
  command({"stop", "--now"});
  EXPECT_EQ(second->wait(), 143) << second->err();
}

TEST_F(ElectedServiceWithTls, ACertificateThatWasRenewedIsReadAgain) {
  const Authority etcds(files_.path(), etcd_->tls_file("ca.crt"), etcd_->tls_file("ca.key"));
  const CertificateOptions is_short{.valid_for = std::chrono::seconds(4)};
  show_to_etcd(etcds.issue("client", is_short));
  const TimePoint expires = BootClock::now() + is_short.valid_for;
  const auto job = leader("1", until_go_after("echo started"));
  ASSERT_TRUE(job->wait_for_out("started")) << job->err();
  ASSERT_TRUE(eventually([&] { return BootClock::now() > expires; }));
  etcd_->kill("0");  // the connections that there are outlive the certificate
  etcd_->start("0");
  ASSERT_TRUE(job->wait_for_err("etcd does not answer in time")) << job->err();
  etcds.issue("client");
  EXPECT_TRUE(eventually([&] {
    const std::string err = job->err();
    const std::size_t silent = err.rfind("etcd does not answer in time");
    return err.find("goes on in term", silent) != err.npos ||
           err.find("leads in term", silent) != err.npos;
  })) << job->err();
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(ElectedService, FewOfManyNodesStandForLeader) {
  constexpr std::size_t kNodes = 8;
  const std::string script = until_go_after("echo started");
  std::vector<Node> nodes;
  nodes.push_back(leader(std::to_string(kNodes), script));
  while (nodes.size() < kNodes) nodes.push_back(agent(std::to_string(kNodes), script));
  for (const Node& one : nodes) EXPECT_TRUE(one->wait_for_out("started")) << one->err();
  let_go();
  int standing = 0;
  for (const Node& one : nodes) {
    EXPECT_EQ(one->wait(), 0) << one->err();
    const std::string err = one->err();
    if (err.find("ddprun: stands by") != err.npos || err.find("leads in") != err.npos) ++standing;
  }
  EXPECT_GE(standing, 3) << "the first three ranks";
  EXPECT_LE(standing, 4) << "and the first node";
}

// Rounds of faults of the node whose agent leads, or of another one. One of three nodes is a
// spare. Each fault of a node with a worker must use one restart, and each other fault none.
class ElectedServiceRounds : public ElectedService {
 protected:
  std::size_t leading() const {
    std::size_t found = 0;
    long newest = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::string err = nodes_[i]->err();
      const std::size_t at = err.rfind("leads in term ");
      const long term = at == err.npos ? 0 : std::strtol(err.c_str() + at + 14, nullptr, 10);
      if (term > newest) found = i;
      newest = std::max(newest, term);
    }
    return found;
  }
  bool has_worker(std::size_t i) const {
    return nodes_[i]->out().find(line_of(restarts_)) != std::string::npos;
  }
  static std::string line_of(int restarts) {
    return "restart " + std::to_string(restarts) + " rank ";
  }
  bool become_workers(std::optional<std::size_t> but = {}) const {
    return eventually([&] {
      int workers = 0;
      for (std::size_t i = 0; i < nodes_.size(); ++i) workers += i != but && has_worker(i) ? 1 : 0;
      return workers == 2;
    });
  }
  void add() {
    nodes_.push_back(agent("2", until_go_after("echo restart $TORCHELASTIC_RESTART_COUNT rank "
                                               "$RANK")));
  }
  // Notes what the workers of a node have printed, which ends.
  void note(const ChildProcess& node) {
    for (const std::string& line : lines_of(node.out()))
      if (line.find("restart ") != line.npos) ++seen_[line.substr(line.find("restart "))];
  }
  std::string all_err() const {
    std::string all;
    for (const Node& one : nodes_) all += "--- node\n" + one->err();
    return all;
  }

  std::vector<Node> nodes_;
  int restarts_ = 0;
  std::map<std::string, int> seen_;
};

TEST_F(ElectedServiceRounds, EachLossOfANodeIsOneRestart) {
  const std::uint64_t seed = test_seed(20261128);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int i = 0; i < 2; ++i) add();
  ASSERT_TRUE(become_workers()) << all_err();
  add();
  for (std::uint64_t left = number_from("DDPRUN_ELECTED_ROUNDS", 2); left > 0; --left) {
    ASSERT_TRUE(nodes_.back()->wait_for_err("ordered to wait")) << all_err();
    let_pass(up_to(std::chrono::milliseconds(300), rng));
    const std::size_t at = rng.chance(0.75) ? leading() : rng.below(nodes_.size());
    const bool is_frozen = left % 2 == 1;
    if (has_worker(at)) ++restarts_;
    if (is_frozen) {
      signal_node(*nodes_[at], SIGSTOP);
    } else {
      lose(*nodes_[at]);
      note(*nodes_[at]);
      nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_TRUE(become_workers(is_frozen ? std::optional(at) : std::nullopt)) << all_err();
    if (is_frozen) {
      signal_node(*nodes_[at], SIGCONT);
      std::rotate(nodes_.begin() + static_cast<std::ptrdiff_t>(at),
                  nodes_.begin() + static_cast<std::ptrdiff_t>(at) + 1, nodes_.end());
    } else {
      add();
    }
  }
  let_go();
  for (const Node& one : nodes_) {
    EXPECT_EQ(one->wait(), 0) << all_err();
    note(*one);
  }
  EXPECT_EQ(seen_.size(), 2U * static_cast<unsigned>(restarts_ + 1)) << "no restart was lost";
  for (const auto& [line, times] : seen_) EXPECT_EQ(times, 1) << line << all_err();
}

}  // namespace
}  // namespace ddprun::testing_support
