#include "launcher/dashboard/command_feed.h"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/concat.h"
#include "base/pidfd.h"
#include "base/pipe.h"
#include "base/spawn_program.h"

namespace ddprun {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// Child: the process of the command, which leads a group. Lives until the process was reaped.
struct CommandFeed::Child {
  pid_t pid;
  stream_descriptor end;  // readable when the process has ended
  bool is_reaped = false;
};

CommandFeed::~CommandFeed() {
  if (child_ && !child_->is_reaped) kill(-child_->pid, SIGKILL);
}

Result<void> CommandFeed::start() {
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return pipe.error();
  const Result<pid_t> pid = spawn_program({.words = words_,
                                           .variables = variables_,
                                           .output = pipe->write.get(),
                                           .errors = pipe->write.get(),
                                           .has_own_group = true});
  if (!pid) return pid.error();
  output_.assign(pipe->read.release());
  UniqueFd end = pidfd_of(*pid);
  if (!end.valid()) {
    const int why = errno;
    kill(-*pid, SIGKILL);
    waitpid(*pid, nullptr, 0);
    return system_error("watch a process", why);
  }
  child_ = std::make_shared<Child>(
      Child{*pid, stream_descriptor(output_.get_executor(), end.release())});
  child_->end.async_wait(stream_descriptor::wait_read, [child = child_](error_code) {
    child->is_reaped = waitpid(child->pid, nullptr, WNOHANG) != 0;
  });
  return {};
}

void CommandFeed::begin(std::function<void()> wake) {
  wake_.emplace(io_, std::move(wake));
  const Result<void> started = start();
  if (started) return read();
  events_.add(concat("ddprun: error: ", started.error().message(), "\n"));
  events_.end();
  wake_->notify();
}

void CommandFeed::read() {
  output_.async_read_some(boost::asio::buffer(buffer_),
                          [weak = weak_from_this()](error_code error, std::size_t size) {
                            const auto self = weak.lock();
                            if (!self) return;
                            self->events_.add({self->buffer_.data(), size});
                            if (error) self->events_.end();
                            self->wake_->notify();
                            if (!error) self->read();
                          });
}

}  // namespace ddprun
