// OutputDrain: what is still to be written when the job's part on this node is over, and how long
// ddprun stays for it.
//
// A disk that has stopped is waited for a few seconds; a reader that is slow gets everything. But
// when somebody wants ddprun to end, before or while it writes, nobody is waited for longer than a
// second. Owner: Agent, on its one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/log.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/log_writer.h"

namespace ddprun {

class OutputDrain {
 public:
  // REQUIRES: all of them outlive it.
  OutputDrain(boost::asio::io_context& io, Logger& log, LogWriter& logs, ConsoleWriter& console);

  // Somebody wants ddprun to end, now or when it comes to that.
  void hurry();

  // Runs the stopped io_context until log files and console have it all, or are not waited for any
  // longer.
  void flush();

 private:
  void flush_logs();
  void flush_console();
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
