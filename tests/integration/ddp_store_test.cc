// The program ddp-store as its users meet it: command line, output, signals, scarce resources.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "rendezvous/listen.h"
#include "rendezvous/store_client.h"
#include "tests/support/raw_tcp_client.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using testing_support::RawTcpClient;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

const std::string kProgram = DDPRUN_BIN_DIR "/ddp-store";

struct Ended {
  int exit_code;
  std::string output;  // both streams
};

Ended run(const std::string& arguments) {
  FILE* pipe = popen((kProgram + " " + arguments + " 2>&1").c_str(), "r");
  std::string output;
  char piece[4096];
  while (const std::size_t got = fread(piece, 1, sizeof piece, pipe)) output.append(piece, got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), output};
}

// A ddp-store on a free port of 127.0.0.1 that runs until the test says otherwise.
class RunningProgram {
 public:
  // limits: what the shell says before it becomes the program, like "ulimit -n 20".
  explicit RunningProgram(const std::string& limits = "true",
                          const std::string& host = "127.0.0.1") {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    const std::string command = limits + " && exec " + kProgram + " --listen '" + host + ":0'";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], 1);
      dup2(err[1], 2);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    out_.reset(out[0]);
    err_.reset(err[0]);
    first_line = read_line(out_.get());
    port =
        static_cast<std::uint16_t>(std::atoi(first_line.substr(first_line.rfind(':') + 1).c_str()));
    EXPECT_GT(port, 0) << first_line;
  }
  ~RunningProgram() {
    if (pid_ > 0) end(SIGKILL);
  }

  // Sends the signal and waits. Returns exit code, or 128 + the signal that killed it.
  int end(int signal) {
    kill(pid_, signal);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // The next line it logs; waits for it.
  std::string log_line() { return read_line(err_.get()); }
  void stop_reading_log() { err_.reset(); }

  std::unique_ptr<StoreClient> client() const {
    auto client = StoreClient::connect(
        {.host = "127.0.0.1", .port = port, .connect_timeout = 10s, .timeout = 10s});
    EXPECT_TRUE(client) << client.error().message();
    return std::move(*client);
  }

  std::string first_line;
  std::uint16_t port = 0;

 private:
  static std::string read_line(int fd) {
    std::string line;
    char byte;
    while (read(fd, &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }

  pid_t pid_ = -1;
  UniqueFd out_;
  UniqueFd err_;
};

TEST(DdpStore, BadInputIsOneLineThatNamesItAndExitCode2) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"", "ddp-store: --listen HOST:PORT is needed"},
      {"--bogus", "ddp-store: .*--bogus.*"},
      {"--listen", "ddp-store: --listen.*"},
      {"--listen 127.0.0.1", "ddp-store: --listen: address '127.0.0.1': HOST:PORT is expected"},
      {"--listen 127.0.0.1:x", "ddp-store: --listen: .*port x is no number from 0 to 65535"},
      {"--listen 127.0.0.1:99999", "ddp-store: .*port 99999 is no number from 0 to 65535"},
      {"--listen localhost:0", "ddp-store: .*'localhost' is no numeric address.*"},
      {"--listen ::1:0", "ddp-store: .*an IPv6 address stands in brackets.*"},
      {"--listen 127.0.0.1:0 extra", "ddp-store: .*extra.*"},
  };
  for (const auto& [arguments, line] : cases) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.exit_code, to_int(ExitCode::kUsage)) << arguments;
    EXPECT_THAT(ended.output, MatchesRegex(std::string(line) + "\n")) << arguments;
    EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 1) << ended.output;
  }
}

TEST(DdpStore, APortThatIsTakenIsOneLineAndItsOwnExitCode) {
  const Result<Listener> taken = listen_tcp({.host = "127.0.0.1", .port = 0});
  const std::string address = to_text(taken->address);
  const Ended ended = run("--listen " + address);
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kAddress));
  EXPECT_EQ(ended.output, "ddp-store: listen on " + address + ": Address already in use\n");
}

TEST(DdpStore, SaysWhatItIs) {
  const Ended version = run("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, MatchesRegex("ddp-store [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const Ended help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("--listen HOST:PORT"));
}

TEST(DdpStore, SaysWhereItListensAndEndsWith0WhenTold) {
  for (const int signal : {SIGTERM, SIGINT}) {
    RunningProgram store;
    EXPECT_EQ(store.first_line, "ddp-store: listening on 127.0.0.1:" + std::to_string(store.port));
    const auto client = store.client();
    EXPECT_EQ(*client->add("n", 1), 1);
    EXPECT_EQ(store.end(signal), 0);
    EXPECT_FALSE(client->add("n", 1));
  }
}

TEST(DdpStore, ListensOnEveryAddressWhenAskedTo) {
  RunningProgram store("true", "*");
  EXPECT_EQ(*store.client()->add("n", 1), 1);
  if (listen_tcp({.host = "::1", .port = 0})) {
    EXPECT_THAT(store.first_line, StartsWith("ddp-store: listening on [::]:"));
    RawTcpClient over_ipv6(store.port, "::1");
  }
}

TEST(DdpStore, OutlivesTheReaderOfItsLog) {
  RunningProgram store;
  store.stop_reading_log();
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
  std::string ping;
  put_handshake(ping);
  put_request(ping, Command::kPing, {}, 7);
  for (int i = 0; i < 30; ++i) {
    clients.push_back(std::make_unique<RawTcpClient>(store.port));
    clients.back()->send(ping);
  }
  EXPECT_EQ(store.log_line(),
            "ddp-store: warning: store: cannot accept a client: Too many open files");
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
  const std::string value(8 << 20, 'v');
  bool refused = false;
  for (int i = 0; i < 100 && !refused; ++i) {
    refused = !greedy->set("k" + std::to_string(i), value) || !greedy->num_keys();
  }
  EXPECT_TRUE(refused) << "800 MiB went into 100";
  EXPECT_THAT(store.log_line(), HasSubstr("out of memory"));
  EXPECT_EQ(*modest->add("n", 1), 1);
  EXPECT_EQ(modest->get("k0", 10s)->size(), value.size());
}

}  // namespace
}  // namespace ddprun
