// The request to save and to leave: --checkpoint-signal of the launcher, as this process sees it. Without
// LibTorch; the process has one.
#pragma once

namespace ddprun {

// From now on the signal asks this process to save. It comes blocked from the launcher, so that one
// that was sent before counts. The first call counts; 0: there is none. Any thread.
void listen_for_save_requests(int signal);

// Whether it has come. Any thread.
bool save_was_requested();

}  // namespace ddprun
