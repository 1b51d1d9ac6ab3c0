// AgentConfig: what an agent runs with. job_plan.h makes it of the command line and the machine; the
// agent reads it. A value type; any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process_tree.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/output/core/console_look.h"
#include "launcher/plan/binding.h"
#include "launcher/plan/core/worker_plan.h"
#include "launcher/process/core/screen_size.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/munge.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/net/address_set.h"

namespace ddprun {

struct AgentConfig {
  LaunchOptions options;
  Rendezvous rendezvous;
  WorkerCommand command;
  Keyring keys;  // of the service that this node meets others at; empty: none
  // Where there are other nodes, neither keys nor certificates, and munge is of use; else null.
  FoundMunge munge;
  TlsFiles tls_files;
  TlsContextPtr tls;       // of tls_files, to join with; null: without TLS
  AddressSet store_allow;  // beside the nodes of the job
  int slots = 1;
  std::string log_root;                    // of this run; empty with --log-dir /dev/null
  std::string scratch_directory;           // removed at the end
  std::string cgroup;                      // of this run (launcher/guard/run_cgroup.h); empty: none
  std::string control_socket;              // removed at the end; empty: none is to be made
  std::vector<int> signals;                // taken: what ends a job, and what is for its workers
  Duration default_grace = kDefaultGrace;  // where --shutdown-grace is not given
  // The process of Slurm that signals every process of the step, this one and its workers; 0: none.
  pid_t manager = 0;
  Duration kill_timeout = kKillPatience;  // for processes to end after SIGKILL
  Binding binding;                        // of as many workers as there are slots
  std::vector<std::string> own_devices;   // of each worker; empty: all inherit what is visible
  ConsoleLook look;                       // of the console, where it is a terminal
  std::optional<ScreenSize> screen;       // the size of that terminal
  std::string tee_pattern;                // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; empty: not set
  bool inherits_omp_threads = false;
  std::string inherited_nccl_async_error_handling;
};

}  // namespace ddprun
