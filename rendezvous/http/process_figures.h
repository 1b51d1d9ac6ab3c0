// What the kernel says of this process, for the page /metrics. Any thread.
#pragma once

#include "rendezvous/http/core/metrics_page.h"

namespace ddprun {

// All 0 where /proc is not there.
ProcessFigures process_figures();

}  // namespace ddprun
