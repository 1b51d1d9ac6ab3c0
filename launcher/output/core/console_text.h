// ConsoleText: what one console stream gets of what several sources write: whole lines, each of one
// source and with its prefix.
//
// A source's line may be open: an update of a progress bar, a part of a very long line, a prompt. When
// the same source goes on, its line goes on, and an update begins with the prefix again, behind the \r
// that it begins with. When another one comes between, the open line is ended first, so that neither a
// reader that looks for \n nor a terminal, where a bar is still to be seen, gets two sources in one
// line; the \n that would have ended it is then left out. No other byte of a source is lost or changed.
// Pure; one owner thread.
#pragma once

#include <string>
#include <string_view>

#include "launcher/output/core/buffer.h"
#include "launcher/output/core/line_splitter.h"

namespace ddprun {

// Somebody who writes to the console: a stream of a worker, or ddprun itself.
struct ConsoleSource {
  std::string prefix;     // in front of each line
  int order = 0;          // among those that are seen at once
  bool returned = false;  // its last piece ended with \r
  bool is_open = false;   // nor with \n: one that comes next is the rest of that line's end
};

class ConsoleText {
 public:
  // Appends a piece of the source, which stays where it is until it is finished.
  void add(ConsoleSource& source, std::string_view piece, PieceEnd end, OutputBuffer& out);
  // The source is gone: its line ends if it is open.
  void finish(ConsoleSource& source, OutputBuffer& out);

 private:
  const ConsoleSource* open_ = nullptr;  // whose line was not ended by \n
};

}  // namespace ddprun
