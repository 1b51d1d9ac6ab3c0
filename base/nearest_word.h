// nearest_word(): guesses which word was meant by a typing error. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

// Returns how many letters must be inserted, removed or changed to turn one word into the
// other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the word that is nearest to `typed`, compared as a whole or by its beginning. Empty:
// none is near.
std::string nearest_word(std::string_view typed, std::span<const std::string> words);

// Returns the end of an error line about an unknown option: ": did you mean --nproc-per-node?";
// or `otherwise` if no option is near. typed: with leading dashes. names: without them.
std::string guess_at_option(std::string_view typed, std::span<const std::string> names,
                            std::string_view otherwise);

}  // namespace ddprun
