// notify_service_manager(): tells the service manager that started this process about its state. It
// uses systemd's protocol: one datagram to the socket that NOTIFY_SOCKET names (sd_notify(3)).
// libsystemd is not used: every host would need one more library for thirty lines of code.
//
// Any thread may call it.
#pragma once

#include <string_view>

#include "base/result.h"

namespace ddprun {

// Sends `state`: lines like "READY=1", "STOPPING=1", "STATUS=text for people". Does nothing
// without NOTIFY_SOCKET. Waits at most one second for a manager that does not read.
Result<void> notify_service_manager(std::string_view state);

}  // namespace ddprun
