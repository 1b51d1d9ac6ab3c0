// What ddprun needs of slurm.conf. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

// Returns munged's socket, which slurm.conf names where it is not munge's own default:
// `AuthInfo=socket=PATH`, perhaps with other settings behind a comma. Names are read in either case, the last
// line counts. Empty: it names none, or no absolute path. text: the file's contents.
std::string munge_socket_of(std::string_view text);

}  // namespace ddprun
