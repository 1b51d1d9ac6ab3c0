// --help and the manual page, both generated from the tables of options, commands and exit
// codes. Any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Returns the text of --help, in lines of at most 100 columns.
std::string help_text();

// Returns the manual page ddprun(1), in the macros of man(7).
std::string man_page();

// Runs the command `man-page`: prints that page. See subcommand.h.
int run_man_page(const std::vector<std::string>& arguments);

}  // namespace ddprun
