// process_figures(): what the kernel reports about this process, for the page /metrics. Any
// thread.
#pragma once

#include "rendezvous/http/core/metrics_page.h"

namespace ddprun {

// Returns the figures. All are 0 where /proc does not exist.
ProcessFigures process_figures();

}  // namespace ddprun
