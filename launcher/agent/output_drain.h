// OutputDrain: writes the remaining output when the job's part on this node is over, and limits
// how long ddprun waits for that.
//
// It waits a few seconds for a disk that has stopped. It waits without limit for a slow console
// reader. But if ddprun is told to end, before or during this, it waits at most a second for
// each.
//
// Owner: Agent, on its one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>

#include "base/log.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/log_writer.h"

namespace ddprun {

class OutputDrain {
 public:
  // REQUIRES: all arguments outlive this object.
  OutputDrain(boost::asio::io_context& io, Logger& log, LogWriter& logs, ConsoleWriter& console);

  // Shortens the wait: ddprun is told to end. May be called before or during flush().
  void hurry();

  // Runs the stopped io_context until the log files and the console have everything, or until
  // the time for them is over.
  void flush();

 private:
  // Runs the io_context until the writer has written everything (true), or until `patience` or
  // hurry() ends the wait.
  template <class Writer>
  bool wait_for(Writer& writer, std::optional<Duration> patience);
  void give_up_after(Duration patience);

  boost::asio::io_context& io_;
  Logger& log_;
  LogWriter& logs_;
  ConsoleWriter& console_;
  boost::asio::steady_timer timer_;
  bool hurried_ = false;
  bool flushing_ = false;
};

}  // namespace ddprun
