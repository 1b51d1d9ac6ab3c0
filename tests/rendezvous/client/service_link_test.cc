// Tests an agent's link to a real service. The test itself plays the name service.
#include "rendezvous/client/service_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/support/certificates.h"
#include "tests/support/control_frame.h"
#include "tests/support/host_has.h"
#include "tests/support/played_service.h"
#include "tests/support/running_service.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_link.h"

namespace {

std::atomic<int> yields = 0;

}  // namespace

// Takes the place of libc's function in this program.
extern "C" int sched_yield() noexcept { return ++yields, 0; }

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using testing_support::PlayedService;
using testing_support::RunningService;
using testing_support::WatchedLink;

class ServiceLinkTest : public testing::Test {
 protected:
  void make_link(RemoteLinkOptions options) {
    if (options.address.port == 0) options.address.port = port_;
    options.link.connect_timeout = connect_timeout_;
    link_.follow(std::move(options));
  }
  // Makes a link to the played service, which has the time that a busy machine needs. Returns
  // whether it has connected.
  bool is_connected_to(PlayedService& service) {
    RemoteLinkOptions options;
    options.address = service.address();
    connect_timeout_ = std::chrono::seconds(20);
    make_link(std::move(options));
    return link_.run_until([&] { return service.has_accepted(); });
  }

  std::unique_ptr<RunningService> service_ = std::make_unique<RunningService>();
  const std::uint16_t port_ = service_->port();
  Duration connect_timeout_ = milliseconds(50);
  WatchedLink link_;
};

TEST_F(ServiceLinkTest, FindsAServiceByItsNumberAndByItsName) {
  if (!testing_support::host_has_localhost()) GTEST_SKIP() << testing_support::kNoLocalhost;
  for (const char* host : {"127.0.0.1", "localhost"}) {
    RemoteLinkOptions options;
    options.address.host = host;
    make_link(std::move(options));
    EXPECT_TRUE(link_.is_directed()) << host << ": " << link_.trouble;
  }
}

TEST_F(ServiceLinkTest, ANameServiceMayTakeLongerThanATryToConnectMay) {
  ResolveHandler answer;
  int questions = 0;
  RemoteLinkOptions options;
  options.address.host = "node0";
  options.look_up = [&](const HostPort&, ResolveHandler then) {
    ++questions;
    answer = std::move(then);
  };
  make_link(std::move(options));
  link_.io.run_for(milliseconds(200));  // four times connect_timeout
  EXPECT_EQ(questions, 1);
  std::thread([&] { answer(std::vector{*numeric_address({"127.0.0.1", port_})}); }).join();
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(ServiceLinkTest, AnAddressThatWorkedIsUsedWhileTheNameServiceIsSilentOrFails) {
  for (const bool is_silent : {true, false}) {
    int questions = 0;
    RemoteLinkOptions options;
    options.address.host = "node0";
    options.look_up = [&](const HostPort&, const ResolveHandler& then) {
      if (++questions == 1) return then(std::vector{*numeric_address({"127.0.0.1", port_})});
      if (!is_silent) then(Error{.kind = ErrorKind::kNotFound, .cause = "no name service"});
    };
    make_link(std::move(options));
    ASSERT_TRUE(link_.is_directed());

    service_.reset();
    ASSERT_TRUE(link_.run_until([&] { return questions >= 2; }))
        << "it is asked when nobody is reached";
    service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "t"}, port_);
    EXPECT_TRUE(link_.is_directed()) << link_.trouble;
  }
}

// A service of a later version may send messages that this version does not know.
TEST_F(ServiceLinkTest, AMessageOfATypeItDoesNotKnowIsPassedOver) {
  PlayedService service(link_.io);
  ASSERT_TRUE(is_connected_to(service));
  std::string bytes = *encode(ServiceMessage(Welcome{.instance = "i",
                                                     .heartbeat_interval = milliseconds(100),
                                                     .agent_patience = std::chrono::seconds(9)}));
  bytes += testing_support::frame_of(R"({"type":"fireworks"})");
  bytes += *encode(ServiceMessage(Wait{"for others"}));
  service.say(bytes);
  EXPECT_TRUE(link_.run_until([&] { return link_.waits_for == "for others"; })) << link_.trouble;
}

// The agent keeps its first copy of an assignment, but a standby must know who served it last.
TEST_F(ServiceLinkTest, ItsHelloHasTheTermInWhichItWasServed) {
  PlayedService service(link_.io);
  link_.assignment.emplace().term = 7;
  ASSERT_TRUE(is_connected_to(service));
  service.say(*encode(ServiceMessage(Welcome{.instance = "i",
                                             .heartbeat_interval = std::chrono::seconds(1),
                                             .agent_patience = std::chrono::seconds(9),
                                             .term = 4711})));
  ASSERT_TRUE(link_.run_until([&] { return service.has_heard(R"("heartbeat")"); }));
  EXPECT_FALSE(service.has_heard("4711"));
  service.agent().close();
  ASSERT_TRUE(link_.run_until([&] { return service.has_accepted(); }));
  EXPECT_TRUE(link_.run_until([&] { return service.has_heard("4711"); }));
}

// A yield forfeits the rest of a time slice. Where other programs compute, links that yield for
// each heartbeat get almost no processor time, and lose their service.
TEST_F(ServiceLinkTest, YieldsToNoOtherProgramWhileItAwaitsAnAnswer) {
  const int before = yields;
  PlayedService service(link_.io);
  ASSERT_TRUE(is_connected_to(service));
  service.say(*encode(ServiceMessage(Welcome{.instance = "i",
                                             .heartbeat_interval = milliseconds(10),
                                             .agent_patience = std::chrono::seconds(9)})));
  EXPECT_TRUE(link_.run_until([&] { return service.has_heard(R"("heartbeat")"); }));
  link_.io.run_for(milliseconds(5));  // ten times as long as it polls for an answer
  EXPECT_EQ(yields, before);
}

// Returns TCP_USER_TIMEOUT of this process's socket with this local port, in milliseconds; -1:
// there is no such socket.
int user_timeout_of(std::uint16_t port) {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in local{};
    socklen_t size = sizeof local;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    if (local.sin_family != AF_INET || ntohs(local.sin_port) != port) continue;
    int milliseconds = -1;
    socklen_t bytes = sizeof milliseconds;
    getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &bytes);
    return milliseconds;
  }
  return -1;
}

// While thousands of agents connect at once, the service's host acknowledges nothing for seconds.
// An agent that ended its connection then would make it worse.
TEST_F(ServiceLinkTest, ItsConnectionEndsWhenItIsCutOffOnlyOnceItIsWelcome) {
  PlayedService service(link_.io);
  ASSERT_TRUE(is_connected_to(service));
  const std::uint16_t port = service.agent().remote_endpoint().port();
  ASSERT_TRUE(link_.run_until([&] { return service.agent().available() > 0; })) << "its hello";
  EXPECT_EQ(user_timeout_of(port), 0);
  service.say(*encode(ServiceMessage(Welcome{.instance = "i",
                                             .heartbeat_interval = milliseconds(100),
                                             .agent_patience = std::chrono::seconds(8)})));
  EXPECT_TRUE(link_.run_until([&] { return user_timeout_of(port) == 2000; }))
      << user_timeout_of(port);
}

TEST_F(ServiceLinkTest, ALookUpThatEndsAfterItsLinkHarmsNobody) {
  ResolveHandler answer;
  RemoteLinkOptions options;
  options.address.host = "node0";
  options.look_up = [&](const HostPort&, ResolveHandler then) { answer = std::move(then); };
  make_link(std::move(options));
  link_.io.run_for(milliseconds(10));
  ASSERT_TRUE(answer);
  link_.go();
  answer(std::vector{*numeric_address({"127.0.0.1", port_})});
  link_.io.run_for(milliseconds(10));
  EXPECT_EQ(link_.directives, 0);
}

// --- keys ---

class ServiceLinkWithAKey : public ServiceLinkTest {
 protected:
  void give_service(const std::string& key) { service_->set_keys(key); }
  void make_link_with(const std::string& key) {
    RemoteLinkOptions options;
    options.address.host = "127.0.0.1";
    options.key = key;
    make_link(std::move(options));
  }
  static constexpr const char* kKey = "0123456789abcdef";
};

TEST_F(ServiceLinkWithAKey, IsWelcomeWhereItIsTheSame) {
  give_service(kKey);
  make_link_with(kKey);
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(ServiceLinkWithAKey, SaysWhyItIsRefused) {
  give_service(kKey);
  make_link_with("fedcba9876543210");
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("the key of this node is not the key"));
  link_.trouble.clear();
  make_link_with("");
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("this service requires a key"));
  EXPECT_EQ(link_.directives, 0);
}

TEST_F(ServiceLinkWithAKey, DoesNotFollowAServiceWithoutIt) {
  make_link_with(kKey);
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("this service has no key"));
  EXPECT_EQ(link_.directives, 0);
}

TEST_F(ServiceLinkWithAKey, AnImpostorOfTheServiceEndsNothing) {
  give_service(kKey);
  make_link_with(kKey);
  ASSERT_TRUE(link_.is_directed()) << link_.trouble;
  service_.reset();
  service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "t"}, port_);
  ASSERT_TRUE(link_.run_until([&] { return service_->has_logged("this service has no key"); }));
  EXPECT_EQ(link_.trouble, "") << "it goes on trying";
  give_service(kKey);
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

// --- several services ---

// FakeService: answers each connection at once with the same messages. Without any it is silent,
// like a process that is stopped.
class FakeService {
 public:
  FakeService(boost::asio::io_context& io, std::vector<ServiceMessage> answers)
      : answers_(std::move(answers)), acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}) {
    if (!answers_.empty()) accept();
  }

  HostPort address() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }
  std::size_t asked() const { return asked_.size(); }
  void say(std::vector<ServiceMessage> answers) { answers_ = std::move(answers); }

 private:
  void accept() {
    acceptor_.async_accept(
        [this](boost::system::error_code error, boost::asio::ip::tcp::socket socket) {
          if (error) return;
          asked_.push_back(std::move(socket));
          for (const ServiceMessage& one : answers_)
            boost::asio::write(asked_.back(), boost::asio::buffer(*encode(one)), error);
          accept();
        });
  }

  std::vector<ServiceMessage> answers_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::vector<boost::asio::ip::tcp::socket> asked_;
};

class ServiceLinkToSeveral : public ServiceLinkWithAKey {
 protected:
  ServiceLinkToSeveral() { connect_timeout_ = std::chrono::seconds(30); }

  void follow(const HostPort& first, std::vector<HostPort> others, const std::string& key = "") {
    RemoteLinkOptions options;
    options.address = first;
    options.others = std::move(others);
    options.key = key;
    make_link(std::move(options));
  }

  const HostPort real_{"127.0.0.1", port_};
  FakeService silent_{link_.io, {}};
};

TEST_F(ServiceLinkToSeveral, ASilentOneDoesNotDelayTheOthers) {
  follow(silent_.address(), {real_});
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(ServiceLinkToSeveral, AnotherTakesThePlaceOfTheLostOne) {
  auto second = std::make_unique<RunningService>(ServiceOptions{.service_id = "s"});
  const HostPort place{"127.0.0.1", second->port()};
  service_.reset();
  follow(real_, {place});
  ASSERT_TRUE(link_.is_directed()) << link_.trouble;
  second.reset();
  service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "s"}, port_);
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
  EXPECT_EQ(link_.trouble, "");
}

TEST_F(ServiceLinkToSeveral, OneThatRefusesThisNodeEndsNothing) {
  FakeService other(link_.io, {Refused{"no"}});
  service_.reset();
  follow(other.address(), {real_});
  ASSERT_TRUE(link_.run_until([&] { return other.asked() > 0; }));
  service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "s"}, port_);
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(ServiceLinkToSeveral, OneThatLeadsLaterIsAskedAgainWhileAnotherIsSilent) {
  service_.reset();
  FakeService standby(link_.io, {Silence{"it does not lead"}});
  follow(silent_.address(), {standby.address(), real_});
  ASSERT_TRUE(link_.run_until([&] { return standby.asked() >= 2; }));
  EXPECT_EQ(link_.directives, 0);
  service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "s"}, port_);
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(ServiceLinkToSeveral, AllThatRefuseThisNodeEndTheJoin) {
  FakeService one(link_.io, {Refused{"no"}});
  FakeService other(link_.io, {Refused{"no"}});
  follow(one.address(), {other.address()});
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("refused this node: " + to_text(one.address()) + ": no"));
}

TEST_F(ServiceLinkToSeveral, ARefusalOfTheLeaderEndsTheJoinAtOnce) {
  FakeService leader(link_.io, {Refused{.reason = "no", .term = 7}});
  FakeService standby(link_.io, {Silence{"another one leads", to_text(leader.address())}});
  follow(standby.address(), {silent_.address(), leader.address()});
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("refused this node: no"));
}

// The service of this process stands by, and names an address that another job has now.
TEST_F(ServiceLinkToSeveral, OnlyARefusalByTheOwnJobsLeaderEndsAnElectedJob) {
  for (const bool is_of_job : {false, true}) {
    FakeService leader(link_.io, {Refused{.reason = "no", .is_of_job = is_of_job, .term = 7}});
    FakeService own(link_.io, {Silence{"another one leads", to_text(leader.address())}});
    RemoteLinkOptions options;
    options.address = own.address();
    options.is_own = true;
    make_link(std::move(options));
    ASSERT_TRUE(link_.run_until([&] { return leader.asked() >= (is_of_job ? 1 : 2); }));
    if (is_of_job) {
      ASSERT_TRUE(link_.gets_into_trouble());
    }
    EXPECT_EQ(link_.trouble.empty(), !is_of_job) << link_.trouble;
  }
}

TEST_F(ServiceLinkToSeveral, AnswersWithoutAReasonDoNoHarm) {
  FakeService standby(link_.io, {Silence{""}});
  FakeService other(link_.io, {Refused{""}});
  follow(standby.address(), {other.address()});
  EXPECT_TRUE(link_.run_until([&] { return standby.asked() >= 3; }));
  EXPECT_EQ(link_.trouble, "");
}

// The service would keep only the later connection of the two.
TEST_F(ServiceLinkToSeveral, AServiceWithTwoNamesIsAskedOnce) {
  FakeService slow(link_.io, {Wait{"not yet"}});
  FakeService standby(link_.io, {Silence{"another one leads"}});
  RemoteLinkOptions options;
  options.address = slow.address();
  options.others = {{"again", slow.address().port}, standby.address()};
  options.look_up = [](const HostPort& place, const ResolveHandler& then) {
    then(std::vector{*numeric_address({"127.0.0.1", place.port})});
  };
  make_link(std::move(options));
  ASSERT_TRUE(link_.run_until([&] { return standby.asked() >= 2; }));
  EXPECT_EQ(slow.asked(), 1);
}

TEST_F(ServiceLinkToSeveral, TheLeaderThatAStandbyNamesIsAskedOnlyIfItMustProveItsIdentity) {
  give_service(kKey);
  FakeService standby(link_.io, {Silence{"another one leads", to_text(real_)}});
  follow(standby.address(), {silent_.address()}, kKey);
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;

  FakeService named(link_.io, {Refused{"no"}});
  FakeService liar(link_.io, {Silence{"another one leads", to_text(named.address())}});
  follow(liar.address(), {silent_.address()});
  ASSERT_TRUE(link_.run_until([&] { return liar.asked() >= 3; }));
  EXPECT_EQ(named.asked(), 0);
}

TEST_F(ServiceLinkToSeveral, AFormerLeaderIsPassedOver) {
  const auto lead = [](ServiceTerm term) -> std::vector<ServiceMessage> {
    return {Welcome{.instance = "i",
                    .heartbeat_interval = std::chrono::seconds(5),
                    .agent_patience = std::chrono::seconds(30),
                    .term = term},
            Wait{.reason = "term " + std::to_string(term), .term = term}};
  };
  auto leader = std::make_unique<FakeService>(link_.io, lead(7));
  FakeService other(link_.io, {Silence{"another one leads"}});
  follow(leader->address(), {other.address()});
  ASSERT_TRUE(link_.run_until([&] { return link_.waits_for == "term 7"; }));
  other.say(lead(6));
  const std::size_t before = other.asked();
  leader.reset();
  ASSERT_TRUE(link_.run_until([&] { return other.asked() >= before + 2; }));
  EXPECT_EQ(link_.waits_for, "term 7");
  other.say(lead(8));
  EXPECT_TRUE(link_.run_until([&] { return link_.waits_for == "term 8"; })) << link_.trouble;
}

TEST_F(ServiceLinkToSeveral, AStandbyThatSharesTheLeadersNameIsPassedOver) {
  FakeService standby(link_.io, {Silence{"another one leads"}});
  RemoteLinkOptions options;
  options.address = {"rendezvous", 1};
  options.look_up = [&](const HostPort&, const ResolveHandler& then) {
    then(std::vector{*numeric_address(standby.address()), *numeric_address(real_)});
  };
  make_link(std::move(options));
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

// --- TLS ---

using testing_support::Authority;
using testing_support::IssuedFiles;

class ServiceLinkWithTls : public ServiceLinkTest {
 protected:
  ServiceLinkWithTls() { connect_timeout_ = std::chrono::seconds(3); }

  void give_service(const TlsFiles& files) { service_->set_tls(files); }
  void make_link_with(const TlsFiles& files, const std::string& key = "",
                      const std::string& host = "127.0.0.1") {
    RemoteLinkOptions options;
    options.address.host = host;
    options.key = key;
    if (files.is_given()) options.tls = TlsContext::for_agent(files)->context;
    options.tls_files = files;
    make_link(std::move(options));
  }
  // Returns the reason for which an agent that was never welcomed gives up at once.
  std::string gives_up(const TlsFiles& files, const std::string& host = "127.0.0.1") {
    link_.trouble.clear();
    make_link_with(files, "", host);
    EXPECT_TRUE(link_.gets_into_trouble());
    EXPECT_EQ(link_.directives, 0);
    return link_.trouble;
  }
  bool joins() { return link_.is_directed(); }
  void restart_service() {
    service_.reset();
    service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "t"}, port_);
  }
  bool service_has_logged(const std::string& text) {
    return link_.run_until([&] { return service_->has_logged(text); });
  }

  const testing_support::TemporaryDirectory directory_;
  const Authority ours_{directory_.path(), "ours"};
  const Authority theirs_{directory_.path(), "theirs"};
  const IssuedFiles service_files_ = ours_.issue("service");
  const TlsFiles plain_tls_{.cert = service_files_.cert, .key = service_files_.key, .ca = {}};
  const TlsFiles mutual_{
      .cert = service_files_.cert, .key = service_files_.key, .ca = ours_.ca_file()};
  const TlsFiles knows_us_{.cert = {}, .key = {}, .ca = ours_.ca_file()};
};

TEST_F(ServiceLinkWithTls, JoinsThroughItByAddressAndByName) {
  if (!testing_support::host_has_localhost()) GTEST_SKIP() << testing_support::kNoLocalhost;
  give_service(plain_tls_);
  for (const char* host : {"127.0.0.1", "localhost"}) {
    make_link_with(knows_us_, "", host);
    EXPECT_TRUE(joins()) << link_.trouble;
  }
}

TEST_F(ServiceLinkWithTls, OneOfTwoNamesOfAServiceMayBeThatOfItsCertificate) {
  give_service(plain_tls_);
  RemoteLinkOptions options;
  options.address = {"unknown.example", port_};
  options.others = {{"localhost", port_}};
  options.tls = TlsContext::for_agent(knows_us_)->context;
  options.look_up = [](const HostPort& place, const ResolveHandler& then) {
    then(std::vector{*numeric_address({"127.0.0.1", place.port})});
  };
  make_link(std::move(options));
  EXPECT_TRUE(joins()) << link_.trouble;
}

TEST_F(ServiceLinkWithTls, TheKeyIsProvedInsideIt) {
  give_service(plain_tls_);
  service_->set_keys("0123456789abcdef");
  make_link_with(knows_us_, "0123456789abcdef");
  EXPECT_TRUE(joins()) << link_.trouble;
  make_link_with(knows_us_, "fedcba9876543210");
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("the key of this node is not the key"));
}

TEST_F(ServiceLinkWithTls, AServiceThatIsNotToBeTrustedEndsTheJoinWithTheReason) {
  if (!testing_support::host_has_localhost()) GTEST_SKIP() << testing_support::kNoLocalhost;
  give_service(plain_tls_);
  EXPECT_THAT(gives_up({.cert = {}, .key = {}, .ca = theirs_.ca_file()}),
              HasSubstr("the certificate of the peer is not accepted: "));
  EXPECT_THAT(gives_up({.cert = {}, .key = {}, .ca = TlsFiles::kSystem}),
              HasSubstr("not accepted"));
  const IssuedFiles other = ours_.issue("other", {.names = "DNS:node7"});
  give_service({.cert = other.cert, .key = other.key, .ca = {}});
  EXPECT_THAT(gives_up(knows_us_, "localhost"), HasSubstr("it is not valid for 'localhost'"));
  const IssuedFiles late = ours_.issue("late", {.valid_for = -std::chrono::hours(1)});
  give_service({.cert = late.cert, .key = late.key, .ca = {}});
  EXPECT_THAT(gives_up(knows_us_), HasSubstr("certificate has expired"));
  EXPECT_THAT(link_.trouble, HasSubstr("no TLS connection with"));
}

TEST_F(ServiceLinkWithTls, SaysWhatTheServiceWants) {
  give_service(mutual_);
  EXPECT_THAT(gives_up(knows_us_), HasSubstr("--rdzv-tls-cert and --rdzv-tls-key"));
  const IssuedFiles other = theirs_.issue("other");
  EXPECT_THAT(gives_up({.cert = other.cert, .key = other.key, .ca = ours_.ca_file()}),
              HasSubstr("does not come from its --rdzv-tls-ca"));
  EXPECT_THAT(gives_up({}), HasSubstr("requires TLS: give this node --rdzv-tls-ca"));
  make_link_with(mutual_);
  EXPECT_TRUE(joins()) << link_.trouble;
}

TEST_F(ServiceLinkWithTls, DoesNotFollowAServiceWithoutIt) {
  EXPECT_THAT(gives_up(knows_us_), HasSubstr("has no --rdzv-tls-cert"));
}

TEST_F(ServiceLinkWithTls, AnImpostorOfTheServiceEndsNothing) {
  give_service(plain_tls_);
  make_link_with(knows_us_);
  ASSERT_TRUE(joins()) << link_.trouble;
  restart_service();  // without TLS; later with another authority's certificate
  ASSERT_TRUE(service_has_logged("it speaks TLS"));
  const IssuedFiles other = theirs_.issue("other");
  give_service({.cert = other.cert, .key = other.key, .ca = {}});
  ASSERT_TRUE(service_has_logged("the peer sent: "));
  EXPECT_EQ(link_.trouble, "") << "it goes on trying";
  give_service(plain_tls_);
  EXPECT_TRUE(joins()) << link_.trouble;
}

TEST_F(ServiceLinkWithTls, ReadsItsFilesAgainForTheNextConnection) {
  give_service(mutual_);
  const IssuedFiles node = ours_.issue("node");
  make_link_with({.cert = node.cert, .key = node.key, .ca = ours_.ca_file()});
  ASSERT_TRUE(joins()) << link_.trouble;
  // The authority is new, and so are all certificates that it signs.
  const Authority renewed(directory_.path(), "ours");
  renewed.issue("node");
  renewed.issue("service");
  restart_service();
  give_service(mutual_);
  EXPECT_TRUE(joins()) << link_.trouble;
}

}  // namespace
}  // namespace ddprun
