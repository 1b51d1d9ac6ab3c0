#include "tests/support/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/parse_number.h"
#include "base/pidfd.h"
#include "base/pipe.h"
#include "base/poll_until.h"
#include "base/wait_status.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

// Removes "ddprun: removed ..., left by a run whose guards were all killed", up to the line's end.
std::string without_leftovers(std::string text) {
  std::size_t at;
  while ((at = text.find(", left by a run whose guards were all killed")) != std::string::npos) {
    const std::size_t begin = text.rfind("ddprun: removed ", at);
    const std::size_t end = text.find('\n', at);
    if (begin == std::string::npos || end == std::string::npos) break;
    text.erase(begin, end + 1 - begin);
  }
  return text;
}

void set_size(int terminal, ChildProcess::Options::Size size) {
  const winsize wanted{.ws_row = static_cast<unsigned short>(size.rows),
                       .ws_col = static_cast<unsigned short>(size.columns),
                       .ws_xpixel = 0,
                       .ws_ypixel = 0};
  EXPECT_EQ(ioctl(terminal, TIOCSWINSZ, &wanted), 0) << strerror(errno);
}

// Opens a pseudo-terminal of this size and returns its two ends.
Pipe open_terminal(ChildProcess::Options::Size size) {
  Pipe ends;
  ends.read.reset(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_TRUE(ends.read.valid() && grantpt(ends.read.get()) == 0 && unlockpt(ends.read.get()) == 0);
  ends.write.reset(ioctl(ends.read.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_TRUE(ends.write.valid()) << strerror(errno);
  set_size(ends.read.get(), size);
  return ends;
}

}  // namespace

ChildProcess::ChildProcess(Arguments argv, Options options) {
  auto [out_read, out_write] =
      options.terminal ? open_terminal(*options.terminal) : make_pipe().value();
  auto [err_read, err_write] = make_pipe().value();
  auto [stop_read, stop_write] = make_pipe().value();
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    if (options.own_session || options.terminal) setsid();
    dup2(out_write.get(), STDOUT_FILENO);
    dup2(options.terminal ? out_write.get() : err_write.get(), STDERR_FILENO);
    if (options.terminal) {
      dup2(out_write.get(), STDIN_FILENO);
      ioctl(STDIN_FILENO, TIOCSCTTY, 0);
    }
    if (!options.input.empty()) {
      const int input = open(options.input.c_str(), O_RDONLY | O_CLOEXEC);
      if (input < 0 || dup2(input, STDIN_FILENO) < 0) _exit(125);
    }
    for (const auto& [name, value] : options.variables) setenv(name.c_str(), value.c_str(), 1);
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(126);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  EXPECT_GT(pid_, 0) << strerror(errno);
  pidfd_ = pidfd_of(pid_);
  out_pipe_ = std::move(out_read);
  err_pipe_ = std::move(err_read);
  stop_read_ = std::move(stop_read);
  stop_write_ = std::move(stop_write);
  reader_ = std::thread([this] { read_output(); });
}

ChildProcess::~ChildProcess() {
  if (!exit_code_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  stop_write_.reset();
  reader_.join();
}

void ChildProcess::signal(int number) const {
  if (!exit_code_) kill(pid_, number);
}

void ChildProcess::type(const std::string& text) const {
  EXPECT_EQ(write(out_pipe_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void ChildProcess::resize(Options::Size size) const { set_size(out_pipe_.get(), size); }

std::string ChildProcess::out() const {
  const std::lock_guard lock(mutex_);
  return without_leftovers(out_);
}

std::string ChildProcess::err() const {
  const std::lock_guard lock(mutex_);
  return without_leftovers(err_);
}

bool ChildProcess::wait_for_out(const std::string& text, Duration allowed) {
  return wait_for(out_, out_closed_, text, allowed);
}

bool ChildProcess::wait_for_err(const std::string& text, Duration allowed) {
  return wait_for(err_, err_closed_, text, allowed);
}

bool ChildProcess::wait_for(const std::string& stream, const bool& closed, const std::string& text,
                            Duration allowed) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, allowed,
                    [&] { return closed || stream.find(text) != std::string::npos; });
  return stream.find(text) != std::string::npos;
}

std::optional<std::string> ChildProcess::line(Duration allowed) {
  std::unique_lock lock(mutex_);
  const auto end = [this] { return out_.find('\n', next_line_); };
  changed_.wait_for(lock, allowed, [&] { return out_closed_ || end() != std::string::npos; });
  if (end() == std::string::npos) return std::nullopt;
  std::string text = out_.substr(next_line_, end() - next_line_);
  next_line_ = end() + 1;
  return text;
}

std::optional<int> ChildProcess::wait(Duration allowed) {
  if (exit_code_) return exit_code_;
  pollfd fd{pidfd_.get(), POLLIN, 0};
  if (!poll_until({&fd, 1}, in(allowed))) return std::nullopt;
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_code_ = exit_code_of_status(status);
  // The last output may still be in the pipes. Children of the process may keep the pipes open,
  // so the wait is limited.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(2), [this] { return out_closed_ && err_closed_; });
  return exit_code_;
}

void ChildProcess::read_output() {
  std::array<char, 65536> buffer;
  bool out_open = true;
  bool err_open = true;
  while (out_open || err_open) {
    std::array<pollfd, 3> fds{{{out_open ? out_pipe_.get() : -1, POLLIN, 0},
                               {err_open ? err_pipe_.get() : -1, POLLIN, 0},
                               {stop_read_.get(), POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[2].revents != 0) return;
    for (int i = 0; i < 2; ++i) {
      if (fds[static_cast<std::size_t>(i)].revents == 0) continue;
      const ssize_t size = read(fds[static_cast<std::size_t>(i)].fd, buffer.data(), buffer.size());
      const std::lock_guard lock(mutex_);
      if (size > 0) {
        (i == 0 ? out_ : err_).append(buffer.data(), static_cast<std::size_t>(size));
      } else {
        (i == 0 ? out_open : err_open) = false;
        (i == 0 ? out_closed_ : err_closed_) = true;
      }
      changed_.notify_all();
    }
  }
}

std::string listening_address(ChildProcess& service) {
  const std::string line = service.line().value_or("");
  EXPECT_THAT(line, HasSubstr(": listening on ")) << line << service.err();
  return line.substr(line.rfind(' ') + 1);
}

pid_t first_child_of(pid_t parent) {
  const std::string process = "/proc/" + std::to_string(parent);
  std::ifstream file(process + "/task/" + std::to_string(parent) + "/children");
  pid_t child = -1;
  file >> child;
  return child > 0 ? child : -1;
}

std::vector<pid_t> processes_with(const std::string& variable, const std::string& value) {
  const std::string wanted = variable + "=" + value;
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto pid = parse_number<pid_t>(entry.path().filename().native());
    if (!pid) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    for (std::string text; std::getline(file, text, '\0');) {
      if (text == wanted) {
        found.push_back(*pid);
        break;
      }
    }
  }
  return found;
}

}  // namespace ddprun::testing_support
