// What ddprun says about itself: --help and the manual page, both from the tables of options,
// commands and exit codes. Any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// The text of --help, in lines of 100 columns at most.
std::string help_text();

// The manual page ddprun(1), for man(7)'s macros.
std::string man_page();

// The command man-page: prints it. See Subcommand::run.
int run_man_page(const std::vector<std::string>& arguments);

}  // namespace ddprun
