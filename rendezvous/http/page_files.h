// The files of the page in rendezvous/http/page/, which a browser loads. The build embeds them
// (cmake/EmbedPage.cmake). Any thread.
#pragma once

#include <string_view>

namespace ddprun {

struct PageFile {
  std::string_view path;  // "/" for index.html
  std::string_view type;
  std::string_view text;
};

// Returns the file of that path; null: there is none.
const PageFile* find_page_file(std::string_view path);

}  // namespace ddprun
