// PrivateMunged: a munged of a test's own, with a key and a socket in a directory of its own. Two
// with the same key are as two nodes of a cluster. Needs no root, but the program; without it a test
// skips with PrivateMunged::missing(). One owner thread.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>

#include "rendezvous/auth/munge.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"

namespace ddprun::testing_support {

class PrivateMunged {
 public:
  // Why there can be none here; empty: there can.
  static std::string missing() {
    if (access(kProgram, X_OK) == 0) return "";
    return std::string(kProgram) + " is missing: scripts/setup --tests installs munge";
  }

  // key: any text; the same one makes the same key.
  explicit PrivateMunged(const std::string& key = "a key") {
    chmod(directory_.path().c_str(), 0755);  // other users look for the socket in there
    std::string bytes;
    while (bytes.size() < 64) bytes += key + "/";
    std::ofstream(directory_ / "key") << bytes;
    chmod((directory_ / "key").c_str(), 0600);
    start();
  }

  std::string socket() const { return directory_ / "socket"; }
  MungeOptions options() const { return {.socket = socket()}; }

  void start() {
    process_ = std::make_unique<ChildProcess>(
        Arguments{kProgram, "--foreground", "--force", "--key-file=" + (directory_ / "key"),
                  "--socket=" + socket(), "--pid-file=" + (directory_ / "pid"),
                  "--seed-file=" + (directory_ / "seed"), "--log-file=" + (directory_ / "log")});
    EXPECT_TRUE(eventually([&] { return find_munge(options()).munge != nullptr; }))
        << find_munge(options()).why_not << "\n"
        << process_->err();
  }
  // Its socket stays, as that of one that was killed does.
  void kill() {
    process_->signal(SIGKILL);
    process_->wait();
  }
  void hang() { process_->signal(SIGSTOP); }
  void go_on() { process_->signal(SIGCONT); }

 private:
  static constexpr const char* kProgram = "/usr/sbin/munged";

  TemporaryDirectory directory_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace ddprun::testing_support
