// nearest_word(): what a typing error was probably meant to be. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

// How many letters have to be put in, taken out or changed to make one word of the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The one of `enum_names` that is nearest to what was typed, as a whole or by its beginning; empty: none
// is near.
std::string nearest_word(std::string_view typed, std::span<const std::string> words);

// The end of an error line that an unknown option begins: ": did you mean --nproc-per-node?"; where no
// option is near, `otherwise`. typed: with dashes in front. names: without.
std::string guess_at_option(std::string_view typed, std::span<const std::string> names,
                            std::string_view otherwise);

}  // namespace ddprun
