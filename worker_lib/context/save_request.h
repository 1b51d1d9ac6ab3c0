// The request to save and to exit (the launcher's --checkpoint-signal), as this process sees it.
// Needs no LibTorch. The process has one.
#pragma once

namespace ddprun {

// Makes the signal request a save from this process from now on. The launcher starts workers with
// the signal blocked, so a signal that was sent earlier counts, too. In a job of Slurm, SIGTERM of
// slurmstepd requests a save as well, if the program does not handle SIGTERM. If steps have no
// control groups (proctrack/linuxproc), Slurm sends it to workers directly. Another SIGTERM ends
// this process. Only the first call has an effect. signal 0: none. Any thread.
void listen_for_save_requests(int signal);

// Returns whether the signal has come. Any thread.
bool save_was_requested();

}  // namespace ddprun
