// Terminals: the size of one that is there, and pseudo terminals for workers (--pty). Any thread.
#pragma once

#include <optional>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/process/core/screen_size.h"

namespace ddprun {

// nullopt: it is none.
std::optional<ScreenSize> size_of_terminal(int descriptor);

// Who has it as controlling terminal hears of a change (SIGWINCH).
void resize_terminal(int descriptor, ScreenSize size);

struct PseudoTerminal {
  UniqueFd ours;     // what the worker writes is read here, and what is written is its input
  UniqueFd workers;  // is a terminal
};

// It passes on what is written as it is, so that \n stays one byte: our own terminal does the rest. Nor
// does it echo its input, which has been shown where it was typed. kResource, with the errno, where none
// is to be had.
Result<PseudoTerminal> open_pseudo_terminal(ScreenSize size);

}  // namespace ddprun
