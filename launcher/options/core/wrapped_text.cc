#include "launcher/options/core/wrapped_text.h"

#include <sstream>

#include "base/is_control.h"

namespace ddprun {

std::string wrapped(const std::string& words, std::size_t indent, std::size_t width) {
  std::string text;
  std::size_t column = indent;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    word = in_one_line(std::move(word));
    if (column > indent && column + 1 + word.size() > width) {
      text += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text;
}

}  // namespace ddprun
