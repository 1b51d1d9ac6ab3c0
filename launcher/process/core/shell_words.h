// Splits a command into words as a shell does, and quotes words for a shell. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

// Returns the word itself if a shell takes it unchanged, otherwise in quotes.
std::string in_shell_words(const std::string& text);

// Splits a text as a shell does: at spaces, with '...', "..." and \. kInvalidArgument: the text has
// no word, or a quote is not closed.
Result<std::vector<std::string>> split_shell_words(std::string_view text);

}  // namespace ddprun
