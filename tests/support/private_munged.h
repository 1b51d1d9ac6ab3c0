// PrivateMunged: a munged that belongs to one test, with a key and a socket in its own
// directory. Two with the same key act as two nodes of a cluster.
//
// Needs no root, but needs the program munged. Without it a test skips with
// PrivateMunged::missing(). One owner thread.
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
  // Returns why munged cannot run on this machine; empty if it can.
  static std::string missing() {
    if (access(kProgram, X_OK) == 0) return "";
    return std::string(kProgram) + " is missing: scripts/setup --tests installs munge";
  }

  // Starts a munged. key: any text; the same text makes the same key.
  explicit PrivateMunged(const std::string& key = "a key") {
    chmod(directory_.path().c_str(), 0755);  // other users connect to the socket in it
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
  // Kills munged. Its socket file stays, as it does after any SIGKILL.
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
