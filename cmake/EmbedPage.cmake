# Writes the C++ source of the files of a page: cmake -DOUTPUT=FILE -DFOLDER=DIRECTORY -P this.
# rendezvous/http/page_files.h declares what it defines.
set(type_of_html "text/html; charset=utf-8")
set(type_of_css "text/css; charset=utf-8")
set(type_of_js "text/javascript; charset=utf-8")
set(type_of_svg "image/svg+xml")
set(entries)
set(count 0)
set(bytes 0)
foreach(name index.html page.css page.js actions.js calls.js elements.js numbers.js rank.js
             icon.svg)
  file(READ "${FOLDER}/${name}" text)
  string(LENGTH "${text}" length)
  math(EXPR bytes "${bytes} + ${length}")
  math(EXPR count "${count} + 1")
  string(REGEX REPLACE ".*\\." "" ending "${name}")
  string(REPLACE "index.html" "" path "/${name}")
  string(APPEND entries
         "    {\"${path}\", \"${type_of_${ending}}\", R\"_page_(${text})_page_\"},\n")
endforeach()
if(bytes GREATER 122880)
  message(FATAL_ERROR "the page has ${bytes} bytes; 120 KiB are the most")
endif()
file(WRITE "${OUTPUT}" "#include \"rendezvous/http/page_files.h\"

#include <array>

namespace ddprun {

const PageFile* find_page_file(std::string_view path) {
  static constexpr std::array<PageFile, ${count}> kFiles{{
${entries}  }};
  for (const PageFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace ddprun
")
