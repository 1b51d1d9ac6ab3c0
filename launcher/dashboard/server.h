// DashboardServer: serves the page of one job to browsers of this user on this host.
//
// It asks for the status every second, and passes buttons on, as the commands of ddprun do. So it
// asks for the last calls of a rank. For a page that shows a rank it runs `ddprun logs`. It serves
// only connections of this user and of root, and among them only a browser that has the cookie
// (launcher/dashboard/access.h).
//
// One thread, which runs the io_context, makes all calls. Questions to the job run in threads of
// their own, which may outlive the server and still use the io_context. So end the process by
// _Exit(), and destroy neither.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/control/job_watch.h"
#include "launcher/dashboard/status.h"

namespace ddprun {

// RankCommands: how to run commands of ddprun for this job.
struct RankCommands {
  std::string program;
  std::vector<std::string> arguments;            // after the options of the command
  std::map<std::string, std::string> variables;  // of the environment
};

class DashboardServer {
 public:
  // watch: its find() has succeeded. first: has its picture. token: of the address. `over` is
  // called once, when the job has ended and open pages were sent that. `io` outlives the server.
  DashboardServer(boost::asio::io_context& io, UniqueFd listener, JobWatch watch,
                  DashboardStatus first, RankCommands commands, const std::string& token,
                  std::function<void()> over);
  ~DashboardServer();
  // Closes all connections and kills the commands. Called once, also by the destructor.
  void close();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
