// AgentConfig: the settings that an agent runs with. plan_job() (job_plan.h) makes it from the
// command line and the machine. The agent only reads it. A value type; any thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process_tree.h"
#include "base/unique_fd.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/output/core/console_look.h"
#include "launcher/plan/core/worker_plan.h"
#include "launcher/process/core/screen_size.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/munge.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/net/address_set.h"

namespace ddprun {

// The fields of PlanOptions that belong to a single generation are empty here.
struct AgentConfig : PlanOptions {
  Rendezvous rendezvous;
  Keyring keys;  // for the service at which this node meets others; empty: none
  // Set if the job has other nodes, keys and certificates are missing, and munge works; else
  // null.
  FoundMunge munge;
  TlsFiles tls_files;
  TlsContextPtr etcd_tls;  // to connect to etcd; null: http
  TlsContextPtr tls;       // made from tls_files, to join with; null: no TLS
  // A socket that already listens at the rendezvous endpoint, and the address at which other nodes
  // reach it. The agent takes the socket. Null: the agent looks for the service.
  std::shared_ptr<UniqueFd> service_socket;
  std::string service_address;
  AddressSet store_allow;         // addresses that may use the store, besides the job's nodes
  std::string log_root;           // of this run; empty with --log-dir /dev/null
  std::string scratch_directory;  // removed at the end
  std::string cgroup;             // of this run (launcher/guard/run_cgroup.h); empty: none
  std::string control_socket;     // removed at the end; empty: no socket
  // The agent handles these: signals that end a job, and signals for its workers.
  std::vector<int> signals;
  Duration default_grace = kDefaultGrace;  // used without --shutdown-grace
  // The Slurm process that signals every process of the step, including this one and its
  // workers; 0: none.
  pid_t manager = 0;
  // The number of the job of Slurm whose time limit this agent watches; empty: none. Only on node
  // rank 0.
  std::string watched_job;
  bool saves_on_term = false;  // SIGTERM asks the workers to save (of Slurm, or of a pod's node)
  Duration kill_timeout = kKillPatience;  // how long processes may take to end after SIGKILL
  std::string cluster;  // what was taken from the scheduler, in one line; empty: nothing
  std::string binding;  // how the workers are bound, in one line; empty: they are not
  ConsoleLook look;     // of the console, if it is a terminal
  std::optional<ScreenSize> screen;  // size of that terminal
  std::string tee_pattern;           // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; empty: not set
};

}  // namespace ddprun
