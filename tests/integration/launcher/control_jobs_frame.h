// The fixture of tests of `ddprun status`, `logs`, `stop`, `restart` and `signal`: the real
// binary, running jobs, and a runtime directory in which no socket may stay.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"

namespace ddprun::testing_support {

class ControlTest : public RendezvousTest {
 protected:
  void SetUp() override {
    RendezvousTest::SetUp();
    std::filesystem::create_directory(runtime());
  }
  void TearDown() override {
    RendezvousTest::TearDown();
    EXPECT_TRUE(std::filesystem::is_empty(runtime())) << "a socket was left behind";
  }
  std::string runtime() const { return directory_ / "run"; }
  std::string sockets() const { return runtime() + "/ddprun"; }

  std::unique_ptr<ChildProcess> launch(const Arguments& arguments, Variables more = {}) const {
    more.emplace_back("XDG_RUNTIME_DIR", runtime());
    more.emplace_back("USER", "ada");
    return start(arguments, std::move(more));
  }
  std::unique_ptr<ChildProcess> launch_shell(const Arguments& options,
                                             const std::string& script) const {
    return launch(joined(options, {"sh", "-c", script}));
  }
  struct CommandResult {
    int code;
    std::string out;
    std::string err;
    nlohmann::json object() const {
      const nlohmann::json parsed = nlohmann::json::parse(out, nullptr, false);
      return parsed.is_object() ? parsed : nlohmann::json::object();
    }
  };
  CommandResult run_ddprun(const Arguments& arguments) const {
    auto command = launch(arguments);
    const int code = command->wait().value_or(-1);
    return {code, command->out(), command->err()};
  }
  // Starts a job of two workers that run until let_go().
  std::unique_ptr<ChildProcess> running_job(const std::string& id,
                                            const Arguments& options = {}) const {
    auto job = launch_shell(joined({"--nproc-per-node=2", "--rdzv-id=" + id}, options),
                            until_go_after("echo rank $RANK has begun"));
    EXPECT_TRUE(job->wait_for_out("rank 0 has begun")) << job->err();
    EXPECT_TRUE(job->wait_for_out("rank 1 has begun")) << job->err();
    return job;
  }
  std::vector<std::string> socket_files() const {
    std::vector<std::string> found;
    std::error_code gone;  // the last job removes the directory, perhaps at this moment
    for (const auto& entry : std::filesystem::directory_iterator(sockets(), gone)) {
      found.push_back(entry.path());
    }
    return found;
  }
  // Connects to the job. Waits for its socket, whose name begins with a dot until it listens.
  UniqueFd connected() const {
    std::string path;
    EXPECT_TRUE(eventually([&] {
      for (const std::string& file : socket_files()) {
        if (!std::filesystem::path(file).filename().string().starts_with('.')) path = file;
      }
      return !path.empty();
    }));
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0)
        << std::strerror(errno) << " " << address.sun_path;
    return fd;
  }
  // Sends these bytes to the agent. Returns its answer, up to the end of the connection.
  static std::string answer_to(const UniqueFd& fd, const std::string& bytes) {
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    std::string all;
    char buffer[4096];
    pollfd readable{fd.get(), POLLIN, 0};
    while (poll(&readable, 1, 10'000) > 0) {
      const ssize_t size = recv(fd.get(), buffer, sizeof buffer, 0);
      if (size <= 0) return all;
      all.append(buffer, static_cast<std::size_t>(size));
    }
    return all + " ... and it does not close";
  }
};

// The fixture of tests that reach jobs through a ddp-rendezvous.
class ControlByServiceTest : public ControlTest {
 protected:
  void start_service(const Arguments& options = {}, Variables more = {}) {
    service_ = start_rendezvous(joined({"--listen=127.0.0.1:0"}, options), std::move(more));
    endpoint_ = listening_address(*service_);
    ASSERT_FALSE(endpoint_.empty()) << service_->err();
  }
  std::unique_ptr<ChildProcess> begin_job(Variables more = {}) const {
    auto job = launch({"--rdzv-endpoint=" + endpoint_, "--rdzv-id=train", "--nproc-per-node=2",
                       "sh", "-c", "trap 'echo got USR1' USR1; " + until_go_after("echo up $RANK")},
                      std::move(more));
    EXPECT_TRUE(job->wait_for_out("up 0") && job->wait_for_out("up 1")) << job->err();
    return job;
  }
  CommandResult ask(Arguments command, Variables more = {}) const {
    command.push_back("--rdzv-endpoint=" + endpoint_);
    auto asked = launch(command, std::move(more));
    const int code = asked->wait().value_or(-1);
    return {code, asked->out(), asked->err()};
  }
  void TearDown() override {
    if (service_) end(*service_);
    ControlTest::TearDown();
  }
  std::unique_ptr<ChildProcess> service_;
  std::string endpoint_;
};

}  // namespace ddprun::testing_support
