// Quotes words for a shell, in commands that are shown to people. Pure; any thread.
#pragma once

#include <string>

namespace ddprun {

// Returns the word itself if a shell takes it unchanged, otherwise in quotes.
std::string in_shell_words(const std::string& text);

}  // namespace ddprun
