// Returns and sets the size of a terminal, and opens pseudo terminals for workers (--pty). Any
// thread.
#pragma once

#include <optional>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/process/core/screen_size.h"

namespace ddprun {

// Returns the size of the terminal; nullopt: the descriptor is not a terminal.
std::optional<ScreenSize> size_of_terminal(int descriptor);

// Sets the size. Processes whose controlling terminal it is get SIGWINCH on a change.
void resize_terminal(int descriptor, ScreenSize size);

struct PseudoTerminal {
  UniqueFd ours;     // reads what the worker writes; what is written here is the worker's input
  UniqueFd workers;  // the terminal itself
};

// Opens a pseudo terminal that passes output on unchanged, so that \n stays one byte: ddprun's
// own terminal converts it. It does not echo input, because the input was already shown where
// it was typed. kResource, with the errno, if none can be opened.
Result<PseudoTerminal> open_pseudo_terminal(ScreenSize size);

}  // namespace ddprun
