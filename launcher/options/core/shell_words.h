// Words as one types them into a shell, for commands that are shown to people. Pure; any thread.
#pragma once

#include <string>

namespace ddprun {

// The word itself where a shell takes it as it is, else in quotes.
std::string in_shell_words(const std::string& text);

}  // namespace ddprun
