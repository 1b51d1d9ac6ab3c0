// Tests the program ddp-store as its users see it: command line, output, signals, scarce
// resources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "base/pipe.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/store/client.h"
#include "tests/support/child_process.h"
#include "tests/support/client_of.h"
#include "tests/support/docs_table.h"
#include "tests/support/host_has.h"
#include "tests/support/program.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/running_ddp_store.h"
#include "tests/support/sanitized.h"
#include "tests/support/store_bytes.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::handshake;
using testing_support::joined;
using testing_support::kSanitized;
using testing_support::program;
using testing_support::RawTcpClient;
using testing_support::request;
using testing_support::RunningDdpStore;
using testing_support::table_rows;
using testing_support::TableRow;

struct Ended {
  std::optional<int> exit_code;
  std::string output;  // both streams
};

Ended run(const Arguments& arguments) {
  ChildProcess process(joined({program("ddp-store")}, arguments));
  const std::optional<int> exit_code = process.wait();
  return {exit_code, process.out() + process.err()};
}

class RunningProgram : public RunningDdpStore {
 public:
  using RunningDdpStore::RunningDdpStore;

  std::unique_ptr<StoreClient> client() const {
    return testing_support::client_of(port, {.connect_timeout = 10s, .timeout = 10s}).value();
  }
};

TEST(DdpStore, BadInputIsOneLineThatNamesItAndExitCode2) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "--listen: the value is missing .expected HOST:PORT."},
      {{"--bogus"}, ".*--bogus.*"},
      {{"--listen"}, "--listen.*"},
      {{"--listen", "127.0.0.1"}, "--listen: invalid value '127.0.0.1' .expected HOST:PORT."},
      {{"--listen", "127.0.0.1:x"}, "--listen: .*:x' .the port must be a number from 0 to 65535."},
      {{"--listen", "127.0.0.1:99999"}, ".*:99999' .the port must be a number from 0 to 65535."},
      {{"--listen", "localhost:0"}, ".*'localhost' is not a numeric address.*"},
      {{"--listen", "::1:0"}, ".*ADDRESS.:PORT for an IPv6 address.*"},
      {{"--listen", "127.0.0.1:0", "extra"}, ".*extra.*"},
      {{"--listen", "127.0.0.1:0", "--max-held-bytes", "much"}, "--max-held-bytes.*much.*"},
      {{"--listen", "127.0.0.1:0", "--max-keys", "0"}, "--max-keys.*0.*"},
      {{"--listen", "127.0.0.1:0", "--max-connections", "-1"}, "--max-connections.*-1.*"},
      {{"--listen", "127.0.0.1:0", "--legacy-dialect", "l3"},
       "--legacy-dialect: invalid value 'l3' .expected l1 or l2.*"},
  };
  for (const auto& [arguments, line] : cases) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.exit_code, to_int(ExitCode::kUsage)) << line;
    EXPECT_THAT(ended.output, MatchesRegex("ddp-store: error: " + line + "\n"));
    EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 1) << ended.output;
  }
}

TEST(DdpStore, APortThatIsTakenIsOneLineAndItsOwnExitCode) {
  const Result<Listener> taken = listen_tcp({.host = "127.0.0.1", .port = 0});
  const std::string address = to_text(taken->address);
  const Ended ended = run({"--listen", address});
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kAddress));
  EXPECT_EQ(ended.output, "ddp-store: error: listen on " + address + ": Address already in use\n");
}

TEST(DdpStore, SaysWhatItIs) {
  const Ended version = run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, MatchesRegex("ddp-store [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const Ended help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("--listen HOST:PORT"));
}

TEST(DdpStore, SaysWhereItListensAndEndsWith0WhenTold) {
  for (const int signal : {SIGTERM, SIGINT}) {
    RunningProgram store;
    EXPECT_EQ(store.process.out(),
              "ddp-store: listening on 127.0.0.1:" + std::to_string(store.port) + "\n");
    const auto client = store.client();
    EXPECT_EQ(*client->add("n", 1), 1);
    store.process.signal(signal);
    EXPECT_EQ(store.process.wait(), 0);
    EXPECT_FALSE(client->add("n", 1));
  }
}

TEST(DdpStore, ListensOnEveryAddressWhenAskedTo) {
  RunningProgram store("true", "*");
  EXPECT_EQ(*store.client()->add("n", 1), 1);
  if (testing_support::host_has_ipv6()) {
    EXPECT_THAT(store.process.out(), StartsWith("ddp-store: listening on [::]:"));
    RawTcpClient over_ipv6(store.port, "::1");
  }
}

TEST(DdpStore, ReadsLegacyClientsAsItIsTold) {
  const std::string append = request(Command::kAppend, {"k", "v"}, 0, Dialect::kL2);
  const std::string get = request(Command::kGet, {"k"}, 0, Dialect::kL2);
  for (const auto& [options, answer] : std::vector<std::pair<std::string, std::string>>{
           {"--legacy-dialect l2", "\1\0\0\0\0\0\0\0v"s},
           // The answer to DELETE_KEY: there was no such key.
           {"--legacy-dialect l1", "\0\0\0\0\0\0\0\0"s},
           {"", "\0\0\0\0\0\0\0\0"s}}) {
    RunningProgram store("true", "127.0.0.1", options);
    RawTcpClient client(store.port);
    client.send(append + get);
    EXPECT_EQ(client.receive(answer.size()), answer) << options;
  }
}

TEST(DdpStore, ItsLimitsAreAsTold) {
  const std::vector<std::pair<std::string, std::string>> limits{
      {"--max-key-bytes 3", "key of 4 bytes (at most 3"},
      {"--max-value-bytes 1KiB", "value of 2000 bytes (at most 1024"},
      {"--max-keys 1", "2 keys (at most 1"},
      {"--max-request-bytes 1000", "request of 2021 bytes (at most 1000"},
      {"--max-reply-bytes 1000", "a reply of 2008 bytes (at most 1000"},
      {"--max-held-bytes 1000", "the store holds 0 bytes (at most 1000"},
      {"--max-connections 1", "at most 1 connections"},
  };
  for (const auto& [option, reason] : limits) {
    RunningProgram store("true", "127.0.0.1", option);
    RawTcpClient first(store.port), client(store.port);
    client.send(handshake() + request(Command::kSet, {"name", std::string(2000, 'v')}) +
                request(Command::kGet, {"name"}) + request(Command::kCheck, {"a", "b"}));
    EXPECT_TRUE(store.process.wait_for_err(reason)) << option << ": " << store.process.err();
  }
}

TEST(DdpStore, SaysItsLimitsAndTheirDefaultsAsTheDocumentationDoes) {
  std::vector<TableRow> said;
  std::istringstream help(run({"--help"}).output);
  for (std::string line; std::getline(help, line);) {
    std::string option, value;
    std::istringstream(line) >> option >> value;
    if (value.starts_with("SIZE=")) said.push_back({"`" + option + "`", value.substr(5)});
  }
  EXPECT_EQ(table_rows("reference/wire_protocol.md", {"option of `ddp-store`", "at most"}), said);
}

TEST(DdpStore, OutlivesTheReaderOfItsLog) {
  Pipe ends = make_pipe().value();
  // The shell opens it by its name in this process, because it is closed on exec.
  RunningProgram store("exec 2>/proc/" + std::to_string(getpid()) + "/fd/" +
                       std::to_string(ends.write.get()));
  ends.write.reset();
  ends.read.reset();
  for (int i = 0; i < 3; ++i) {
    RawTcpClient bad(store.port);
    bad.send("nonsense");
    EXPECT_TRUE(bad.is_closed());
  }
  EXPECT_EQ(*store.client()->add("n", 1), 1);
}

TEST(DdpStore, WithoutDescriptorsNewClientsWaitUntilOthersLeave) {
  if (kSanitized) GTEST_SKIP() << "UBSan opens a pipe to look at memory, and mistakes its failure";
  RunningProgram store("ulimit -n 20");
  std::vector<std::unique_ptr<RawTcpClient>> clients;
  const std::string ping = handshake() + request(Command::kPing, {}, 7);
  for (int i = 0; i < 30; ++i) {
    clients.push_back(std::make_unique<RawTcpClient>(store.port));
    clients.back()->send(ping);
  }
  EXPECT_TRUE(store.process.wait_for_err(
      "ddp-store: warning: store: cannot accept a client: Too many open files\n"));
  for (const auto& client : clients) {
    EXPECT_EQ(client->receive(4), "\x07\0\0\0"s);
    client->close();
  }
}

TEST(DdpStore, WithoutMemoryItEndsOnlyTheConnectionThatAsksForIt) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space than the test leaves";
  RunningProgram store("ulimit -v 100000");
  const auto modest = store.client();
  const auto greedy = store.client();
  EXPECT_TRUE(modest->set("small", "value"));
  const std::string value(8 << 20, 'v');
  bool refused = false;
  for (int i = 0; i < 100 && !refused; ++i) {
    refused = !greedy->set("k" + std::to_string(i), value) || !greedy->num_keys();
  }
  EXPECT_TRUE(refused) << "800 MiB went into 100";
  EXPECT_TRUE(store.process.wait_for_err("out of memory")) << store.process.err();
  EXPECT_EQ(*modest->add("n", 1), 1);
  // Reading a large value would need memory, too.
  EXPECT_EQ(*modest->get("small", 10s), "value");
}

}  // namespace
}  // namespace ddprun
