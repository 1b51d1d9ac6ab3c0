// Tells the service manager that started this process how it is: systemd's protocol, one datagram
// to the socket that NOTIFY_SOCKET names (sd_notify(3)). Our own thirty lines, because libsystemd
// would be one more library to have on every host.
//
// Any thread.
#pragma once

#include <string_view>

#include "base/result.h"

namespace ddprun {

// state: lines like "READY=1", "STOPPING=1", "STATUS=what people may read". Does nothing where
// nobody asked, without NOTIFY_SOCKET. Waits one second at most for a manager that does not read.
Result<void> notify_service_manager(std::string_view state);

}  // namespace ddprun
