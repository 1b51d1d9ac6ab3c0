#include "launcher/process/exec.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/exit_codes.h"

namespace ddprun {

void prepare_child(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(to_int(ExitCode::kInternal));
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace ddprun
